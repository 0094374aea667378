"""Pictures of the web page for the documents: `web_pictures RUNS --run NAME docs` draws those that they show.

RUNS is a folder of real runs. The pictures are a browser's, so look at them before you commit them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests import browser
from tests.orchestrator.web.served import served

PICTURES = {
    "web-desktop.webp": ("overview", 1400, 960, "light"),
    "web-phone.webp": ("overview", 390, 844, "dark"),
    "web-phone-curves.webp": ("curves", 390, 844, "light"),
    "web-rollouts.webp": ("rollouts", 1400, 800, "dark"),
}
"""File -> view, size and colours."""
DRAWN = {
    "overview": "document.querySelectorAll('.two .plot path.line').length > 2",
    "curves": "document.querySelectorAll('.plot path.line').length > 12",
    "rollouts": "document.querySelectorAll('article.pane').length === 2",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks web_pictures", description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of runs")
    parser.add_argument("out", type=Path, help="folder of the pictures")
    parser.add_argument("--run", required=True, help="the run that is shown")
    args = parser.parse_args(arguments)
    with served(args.runs, "--run", args.run) as page, browser.started() as chromium:
        chromium.open(page.url)
        chromium.wait(DRAWN["overview"])
        for name, (view, width, height, scheme) in PICTURES.items():
            chromium.size(width, height, scale=2 if width < 500 else 1, phone=width < 500)
            chromium.scheme(scheme)
            chromium.open(f"{page.base}/#/{args.run}/{view}")
            chromium.wait(DRAWN[view])
            chromium.run("new Promise(done => setTimeout(done, 500))")
            chromium.picture(args.out / name)
            print(f"wrote {args.out / name}: {(args.out / name).stat().st_size / 1000:.0f} kB")
    return 0
