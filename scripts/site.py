"""What mkdocs cannot do by itself with these pages: links to files outside the site, and notebooks."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

REPOSITORY = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)\)")
"""A link that leaves `docs/`."""
NOTEBOOK = re.compile(r"\]\(([\w-]+)\.ipynb\)")
"""A link to a notebook; on GitHub it is shown as one, on the site there is a page of the same name."""


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page for each notebook."""
    for path in sorted(Path(config["docs_dir"]).glob("*.ipynb")):
        page = page_of(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name the file in place of the link. Raises FileNotFoundError for a file that is not there."""
    return NOTEBOOK.sub(r"](\1.md)", OUTSIDE.sub(_named, markdown))


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    if not (REPOSITORY / path).exists():
        raise FileNotFoundError(f"a page of docs/ links to {path}, which is not there")
    return f"{text} (`{path}`)"


def page_of(notebook: Mapping[str, Any]) -> str:
    """A notebook as Markdown: its texts, its code, and the outputs that are stored in it. (pure)"""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        found = output.get("data", {})
        if "text" in output:
            yield _text(output["text"])
        elif "image/png" in found:
            picture = "".join(found["image/png"].split())
            yield f'<img alt="what the cell above draws" src="data:image/png;base64,{picture}">'
        elif "text/html" in found:
            yield _table("".join(found["text/html"]))
        elif "text/plain" in found:
            yield _text(found["text/plain"])


def _text(lines: str | list[str]) -> str:
    return f"<pre><code>{html.escape(''.join(lines).rstrip())}</code></pre>"


def _table(found: str) -> str:
    """A data frame as the site draws tables: without the style of pandas, and in one block."""
    (table,) = re.findall(r"<table.*?</table>", found, flags=re.DOTALL)
    return re.sub(r"<(table|tr)[^>]*>", r"<\1>", re.sub(r"\s*\n\s*", "", table))
