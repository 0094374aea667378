"""Turns styled lines into ANSI text of an exact width.

rich renders any text correctly, but slowly: it takes half of a frame. Lines that fit and have no styles of their own
objects are painted here; for all others rich is asked.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text


class Painter:
    """colours: None for a terminal without any."""

    def __init__(self, console: Console, colours: ColorSystem | None) -> None:
        self._console = console
        self._colours = colours
        self._around = lru_cache(maxsize=256)(self._codes)

    def paint(self, line: Text, width: int) -> str:
        """ANSI text of exactly `width` cells."""
        runs = _runs(line)
        if runs is None or line.cell_len > width:
            return self._by_rich(line, width)
        plain, parts = line.plain, []
        for start, end, style in runs:
            before, after = self._around(style)
            parts.append(f"{before}{plain[start:end]}{after}")
        parts.append(" " * (width - line.cell_len))
        return "".join(parts)

    def _codes(self, style: str) -> tuple[str, str]:
        """What begins and ends a run of this style."""
        if not style:
            return "", ""
        before, _, after = Style.parse(style).render("\0", color_system=self._colours).partition("\0")
        return before, after

    def _by_rich(self, line: Text, width: int) -> str:
        whole = Text(end="").append_text(line)  # `render` forgets the line's own style where it has no other
        segments = Segment.adjust_line_length(list(whole.render(self._console)), width, style=Style.null())
        return "".join(
            (segment.style or Style.null()).render(segment.text, color_system=self._colours) for segment in segments
        )


def _runs(line: Text) -> list[tuple[int, int, str]] | None:
    """(start, end, style) of runs that cover the line one after another; None if only rich can tell."""
    base, spans, length = line.style, line.spans, len(line.plain)
    if not isinstance(base, str) or "\n" in line.plain or not all(isinstance(span.style, str) for span in spans):
        return None
    if not spans:
        return [(0, length, base)]
    edges = sorted({0, length, *(span.start for span in spans), *(span.end for span in spans)})
    runs = []
    for start, end in pairwise(edges):
        styles = [str(span.style) for span in spans if span.start <= start < span.end and span.style]
        runs.append((start, end, " ".join([base, *styles] if base else styles)))
    return runs
