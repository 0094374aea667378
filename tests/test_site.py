"""The documentation as a site: every link and anchor leads somewhere, and no page asks another server for anything.

LONGHAUL_PICTURES=DIR keeps a picture of each page, to be looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY, browser

LOADED = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(https?:)?//""")


def build(source: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    done = build(REPOSITORY, into)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


def test_every_page_is_built(site: Path) -> None:
    pages = {path.stem for kind in ("md", "ipynb") for path in REPOSITORY.glob(f"docs/*.{kind}")} - {"README"}
    assert {path.stem for path in site.glob("*.html")} == pages | {"index", "404"}


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    loading = {path.name for path in site.glob("*.html") if LOADED.search(path.read_text())}
    assert loading == set()


def test_diagrams_need_no_program_to_draw_them() -> None:
    """The theme would fetch mermaid from another server, and without it the site shows a diagram's source."""
    assert [path.name for path in REPOSITORY.glob("docs/*.md") if "```mermaid" in path.read_text()] == []


def test_a_notebook_is_a_page_with_its_code_its_tables_and_its_pictures(site: Path) -> None:
    page = (site / "notebook.html").read_text()
    assert page.count("data:image/png;base64,") == 1 and page.count("<table>") == 2
    assert "held-out accuracy" in page and "solve" in page
    assert 'href="python.html"' in page and 'href="notebook.html"' in (site / "python.html").read_text()


@pytest.mark.skipif(browser.program() is None, reason=browser.MISSING)
@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_wider_than_the_window_or_asks_another_server(site: Path, width: int) -> None:
    """Wide tables and code scroll inside the page."""
    pictures = os.environ.get("LONGHAUL_PICTURES")
    wide = {}
    with browser.started() as chromium:
        chromium.size(width, 900, phone=width < 600)
        chromium.scheme("dark" if width < 600 else "light")
        for path in sorted(site.glob("*.html")):
            if path.stem == "404":  # its links begin at the root of a server
                continue
            chromium.open(path.as_uri())
            chromium.wait("document.readyState === 'complete' && document.querySelector('article')")
            if over := chromium.run("Math.max(0, document.documentElement.scrollWidth - innerWidth)"):
                wide[path.name] = over
            if pictures:
                chromium.picture(Path(pictures) / f"{path.stem}-{width}.png", whole=True)
        assert wide == {}
        assert chromium.troubles() == []
        assert [url for url in chromium.requests() if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    "wrong", ["[a](quickstart.md#no-such-part)", "[a](no-such-page.md)", "[a](../no-such-file.py)"]
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, wrong: str) -> None:
    for name in ("docs", "scripts"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    config = (REPOSITORY / "mkdocs.yml").read_text()
    nav = config.index("nav:")
    for page in [*(tmp_path / "docs").glob("*.md"), *(tmp_path / "docs").glob("*.ipynb")]:
        page.unlink()
    (tmp_path / "docs/README.md").write_text("# One\n\n[this](quickstart.md)\n")
    (tmp_path / "docs/quickstart.md").write_text("# Two\n")
    (tmp_path / "mkdocs.yml").write_text(config[:nav])
    assert build(tmp_path, tmp_path / "well").returncode == 0
    (tmp_path / "docs/quickstart.md").write_text(f"# Two\n\n{wrong}\n")
    assert build(tmp_path, tmp_path / "wrong").returncode != 0
