"""Draws the dashboard of a run as an SVG, as `top` shows it: `screen RUN_DIR OUT.svg`, for the README's picture.

The run may be training meanwhile. `--page events` draws a page in place of the tiles.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from orchestrator.commands.top import Watched
from orchestrator.display.browse import TITLES, Browser
from orchestrator.display.canvas import Canvas, Line
from orchestrator.display.dashboard import Dashboard
from state.layout import RunDir
from state.reader import Reader


class Recorder(Canvas):
    """A canvas of a fixed size that keeps what is drawn."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__(io.StringIO())
        self.given, self.lines, self.is_open = size, list[str](), True

    @property
    def size(self) -> tuple[int, int]:
        return self.given

    def flush(self) -> bool:
        return True

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> bool:
        self.lines = ["".join(text for _, text in parts) for parts in lines]
        return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks screen", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--columns", type=int, default=118)
    parser.add_argument("--lines", type=int, default=38)
    parser.add_argument("--page", choices=sorted(set(TITLES) - {"samples"}), default="", help="instead of the tiles")
    args = parser.parse_args(arguments)
    lines = drawn(RunDir(args.run), (args.columns, args.lines), args.page)
    console = Console(
        record=True, width=args.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    args.out.write_text(console.export_svg(title=f"longhaul · {args.run.name}"), encoding="utf-8")
    print(f"wrote {args.out}: {args.columns} x {args.lines}")
    return 0


def drawn(run: RunDir, size: tuple[int, int], page: str) -> list[str]:
    """The lines of a frame, as ANSI text."""
    watched = Watched(run, Reader.open(run))
    colours = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=size[0])
    dashboard, browser, canvas = Dashboard(colours), Browser(), Recorder(size)
    dashboard.canvas = canvas
    browser.open(page)
    dashboard.turn_to(watched.page(browser, time.time()))
    dashboard.update(watched.view(time.time(), time.monotonic()))
    watched.reader.close()
    return canvas.lines
