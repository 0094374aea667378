"""The live dashboard of a run on a terminal, drawn with rich's text and colours.

Uses the alternate screen, so that only the summary remains after closing. Never reads the keyboard, waits for the
terminal or starts a thread: the loop calls `update`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from textwrap import wrap
from time import localtime, strftime
from typing import IO, Any

from rich.cells import chop_cells
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from orchestrator.clock import Clock
from orchestrator.display.arrange import Band, Place, arrange
from orchestrator.display.browse import Entry, Page
from orchestrator.display.canvas import Canvas, Line
from orchestrator.display.paint import Painter
from orchestrator.display.plain import write_line
from orchestrator.display.tiles import KEYS, TILES, keys_line, small
from orchestrator.display.view import EventLine, View
from orchestrator.display.wording import harmless

FRAME_EVERY_S = 0.25
"""Minimum time between two redraws."""
TIMER_EVERY_S = 1.0
"""Interval between redraws that only update clocks: the master may use one percent of a core."""
AWAY_S = 5.0
"""After a longer pause the master was suspended (Ctrl+Z), and others may have drawn on the terminal."""
_COLOURS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
_CLOCKS = ("now", "cycle_left_s", "step_elapsed_s", "waiting_left_s", "worker_rss_bytes", "master_rss_bytes")


def suits(console: Console) -> bool:
    """Whether the terminal can move the cursor and display the dashboard's characters."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


class Dashboard:
    """Same interface as Plain: `update(view)`, `say(text)`, `close(summary)`. Never raises for a lost terminal."""

    def __init__(self, console: Console, keys: Sequence[tuple[str, str]] = KEYS) -> None:
        self.console = console
        self.keys = keys
        self.canvas = Canvas(console.file)
        self._colours = None if console.no_color else _COLOURS.get(console.color_system or "")
        self._painter = Painter(console, self._colours)
        self._messages: deque[EventLine] = deque(maxlen=32)
        self._tiles: dict[Place, tuple[Any, list[str]]] = {}
        self._key: tuple[View, int, tuple[int, int]] | None = None
        self._drawn_at = float("-inf")
        self._view: View | None = None
        self._page: Page | None = None
        self._wrapped: tuple[tuple[Entry, ...], int, list[Text]] = ((), 0, [])
        """Entries of the page, a width, and their lines."""
        self.extent = (0, 1)
        """Lines of the page, and how many the screen has room for."""
        self.canvas.open()

    @property
    def is_open(self) -> bool:
        """False if the terminal is gone, or the stream never was one."""
        return self.canvas.is_open

    def update(self, view: View) -> None:
        """Redraw changes at most four times a second, and clocks once a second."""
        self._view = view
        if self.canvas.flush() and self._is_worth_a_frame(view):
            self._draw(view)

    def say(self, text: str) -> None:
        """Show a message of the master among the events."""
        at = _utc()
        self._messages.extend(EventLine(at, "", harmless(line)) for line in text.splitlines())

    def turn_to(self, page: Page | None) -> None:
        """Show a page of text in place of the tiles, from the next update on. None: the tiles again."""
        if page != self._page:
            self._page, self._key, self._drawn_at = page, None, float("-inf")

    def close(self, summary_text: str) -> None:
        """Leave the alternate screen and print the summary on the normal one."""
        self.canvas.close()
        try:
            for line in summary_text.splitlines():
                write_line(self.console.file, harmless(line))
        except (OSError, ValueError):
            return

    def _is_worth_a_frame(self, view: View) -> bool:
        since = view.now - self._drawn_at
        if since < FRAME_EVERY_S:
            return False
        if since >= TIMER_EVERY_S:
            return True
        return self._key != (_without_clocks(view), len(self._messages), self.canvas.size)

    def _draw(self, view: View) -> None:
        if view.now - self._drawn_at > AWAY_S:
            self.canvas.start_anew()
        width, height = size = self.canvas.size
        self._key = (_without_clocks(view), len(self._messages), size)
        self._drawn_at = view.now
        known = {event.text for event in view.events}
        messages = (event for event in self._messages if event.text not in known)
        merged = sorted((*view.events, *messages), key=lambda event: event.at)
        merged_view = replace(view, events=tuple(merged[-24:]))
        lines: list[Line] = [((0, line),) for line in self._page_of_text(width, height)]
        used: dict[Place, tuple[Any, list[str]]] = {}
        for band in arrange(width, height, has_examples=view.kind.finds_tasks) if not lines else ():
            lines += self._band(band, merged_view, used)
        if self.canvas.draw(lines, size):
            self._tiles = used
        else:
            self._key = None

    def _page_of_text(self, width: int, height: int) -> list[str]:
        """The page as a whole frame; empty without a page."""
        page = self._page
        if page is None:
            return []
        rows = max(1, height - 2)
        if self._wrapped[:2] != (page.entries, width):
            self._wrapped = (page.entries, width, _lines_of(page.entries, max(8, width - 4)))
        lines = self._wrapped[2]
        self.extent = (len(lines), rows)
        last = max(0, len(lines) - rows)
        down = last if page.down < 0 else min(page.down, last)
        more = f"{down + 1} to {min(len(lines), down + rows)} of {len(lines)}" if last else ""
        note = " · ".join(filter(None, (more, page.keys)))
        shown = _filled(lines[down : down + rows], rows)
        return self._framed(page.title, note, shown, width)[:height]

    def _band(self, band: Band, view: View, used: dict[Place, tuple[Any, list[str]]]) -> list[Line]:
        stacks = [[line for place in column for line in self._place(place, view, used)] for column in band.columns]
        starts = list(accumulate((column[0].width for column in band.columns), initial=0))[:-1]
        return [tuple(zip(starts, parts, strict=True)) for parts in zip(*stacks, strict=True)]

    def _place(self, place: Place, view: View, used: dict[Place, tuple[Any, list[str]]]) -> list[str]:
        """A tile's lines, each exactly `place.width` wide. Reuses the last frame if its facts are unchanged."""
        tile = TILES.get(place.tile)
        if tile is None and place.tile == "keys":
            used[place] = self._tiles.get(place) or (
                "",
                [self._painter.paint(keys_line(self.keys, place.width), place.width)],
            )
            return used[place][1]
        if tile is None:
            lines = small(view, place.width, place.height, self.keys) if place.tile == "small" else []
            return [self._painter.paint(line, place.width) for line in _filled(lines, place.height)]
        facts = tuple(getattr(view, name) for name in tile.facts)
        known = self._tiles.get(place)
        if known is None or known[0] != facts:
            title, note = view.kind.titles.get(place.tile, tile.title), ""
            if place.tile == "header":
                title, note = f"longhaul · {view.run}", state_of(view)
            elif place.tile == "scores":
                note = view.meter
            inner = _filled(tile.draw(view, place.width - 4, place.height - 2), place.height - 2)
            known = (facts, self._framed(title, note, inner, place.width))
        used[place] = known
        return known[1]

    def _framed(self, title: str, note: str, inner: Sequence[Text], width: int) -> list[str]:
        head = Text("╭─", "dim")
        if title:
            head.append(" ").append(harmless(title), "bold").append(" ")
        tail = Text(f" {note} " if note and len(note) + head.cell_len < width - 6 else "").append("─╮", "dim")
        head.append("─" * max(0, width - head.cell_len - tail.cell_len), "dim").append_text(tail)
        paint = self._painter.paint
        left, right = paint(Text("│ ", "dim"), 2), paint(Text(" │", "dim"), 2)
        body = [f"{left}{paint(line, width - 4)}{right}" for line in inner]
        return [paint(head, width), *body, paint(Text("╰" + "─" * (width - 2) + "╯", "dim"), width)]


def _lines_of(entries: Sequence[Entry], room: int) -> list[Text]:
    """Entries cut or wrapped to `room` cells, further parts of a line indented after its first."""
    found: list[Text] = []
    for entry in entries:
        for number, line in enumerate(entry.lines):
            style = entry.style if number == 0 else ""
            text = Text(line, style)
            if entry.is_cut or text.cell_len <= room:
                found.append(text)
            else:
                indent = " " * min(len(line) - len(line.lstrip()) + 2, room // 2)
                is_wide = text.cell_len > len(line)
                parts = chop_cells(line, room) if is_wide else wrap(line, room, subsequent_indent=indent)
                found += [Text(part, style) for part in parts or [""]]
    return found


def _filled(lines: Sequence[Text], height: int) -> list[Text]:
    return [*lines[:height], *(Text() for _ in range(height - len(lines)))]


def _without_clocks(view: View) -> View:
    return replace(view, **{name: None for name in _CLOCKS})  # type: ignore[arg-type]


def _utc() -> float:
    return Clock().utc()


def open_dashboard(stream: IO[str]) -> Dashboard | None:
    """A dashboard on `stream`, or None if the terminal cannot show one."""
    console = Console(file=stream)
    return Dashboard(console) if suits(console) else None


def state_of(view: View) -> str:
    """(pure, except for the machine's time zone)"""
    begun = strftime("%a %H:%M", localtime(view.created_at))
    return f"profile {harmless(view.profile)} · {view.state} · started {begun}"
