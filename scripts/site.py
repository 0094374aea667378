"""What mkdocs cannot do by itself with these pages: links to files of the repository that are not pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)\)")
"""A link that leaves `docs/`."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name the file in place of the link. Raises FileNotFoundError for a file that is not there."""
    return OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    if not (REPOSITORY / path).exists():
        raise FileNotFoundError(f"a page of docs/ links to {path}, which is not there")
    return f"{text} (`{path}`)"
