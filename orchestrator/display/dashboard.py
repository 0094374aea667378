"""The live picture of a run on a terminal, drawn with rich's text and colours.

It lives on the alternate screen, so that nothing of it is left when it closes and the summary stands on the normal
one. It never reads the keyboard, never waits for the terminal, and starts no thread: the loop calls `update`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from time import localtime, strftime
from typing import IO, Any

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from orchestrator.clock import Clock
from orchestrator.display.arrange import Band, Place, arrange
from orchestrator.display.canvas import Canvas
from orchestrator.display.plain import write_line
from orchestrator.display.tiles import KEYS, TILES, keys_line, small
from orchestrator.display.view import EventLine, View
from orchestrator.display.wording import harmless

FRAME_EVERY_S = 0.25
"""Least time between two redraws."""
TIMER_EVERY_S = 1.0
"""Redraws for nothing but running clocks are this rare: the master has one percent of a core."""
AWAY_S = 5.0
"""After a longer pause the master was stopped (Ctrl+Z), and the terminal belonged to others."""
_COLOURS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
_CLOCKS = ("now", "cycle_left_s", "step_elapsed_s", "waiting_left_s", "worker_rss_bytes", "master_rss_bytes")


def suits(console: Console) -> bool:
    """Whether this terminal can show a dashboard: it moves the cursor, and its encoding has the characters."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


class Dashboard:
    """Same interface as Plain: `update(view)`, `say(text)`, `close(summary)`. Never raises for a lost terminal."""

    def __init__(self, console: Console, keys: Sequence[tuple[str, str]] = KEYS) -> None:
        self.console = console
        self.keys = keys
        self.canvas = Canvas(console.file)
        self._colours = None if console.no_color else _COLOURS.get(console.color_system or "")
        self._said: deque[EventLine] = deque(maxlen=32)
        self._tiles: dict[Place, tuple[Any, list[str]]] = {}
        self._key: tuple[View, int, tuple[int, int]] | None = None
        self._drawn_at = float("-inf")
        self._view: View | None = None
        self.canvas.open()

    @property
    def is_open(self) -> bool:
        """False once the terminal is gone, or was none."""
        return self.canvas.is_open

    def update(self, view: View) -> None:
        """Draw what has changed, at most four times a second, and running clocks once a second."""
        self._view = view
        if self.canvas.flush() and self._is_worth_a_frame(view):
            self._draw(view)

    def say(self, text: str) -> None:
        """A message of the master: shown among the events."""
        at = _utc()
        self._said.extend(EventLine(at, "", harmless(line)) for line in text.splitlines())

    def close(self, summary_text: str) -> None:
        """Leave the alternate screen, and put the summary on the normal one."""
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
        return self._key != (_without_clocks(view), len(self._said), self.canvas.size)

    def _draw(self, view: View) -> None:
        if view.now - self._drawn_at > AWAY_S:
            self.canvas.start_anew()
        width, height = size = self.canvas.size
        self._key = (_without_clocks(view), len(self._said), size)
        self._drawn_at = view.now
        known = {event.text for event in view.events}
        said = (event for event in self._said if event.text not in known)
        merged = sorted((*view.events, *said), key=lambda event: event.at)
        shown = replace(view, events=tuple(merged[-24:]))
        lines: list[str] = []
        used: dict[Place, tuple[Any, list[str]]] = {}
        for band in arrange(width, height, has_examples=view.kind.finds_tasks):
            lines += self._band(band, shown, used)
        if self.canvas.draw(lines, size):
            self._tiles = used
        else:
            self._key = None

    def _band(self, band: Band, view: View, used: dict[Place, tuple[Any, list[str]]]) -> list[str]:
        stacks = [[line for place in column for line in self._place(place, view, used)] for column in band.columns]
        return ["".join(parts) for parts in zip(*stacks, strict=True)]

    def _place(self, place: Place, view: View, used: dict[Place, tuple[Any, list[str]]]) -> list[str]:
        """A tile's lines, each exactly `place.width` wide; from the last frame where none of its facts changed."""
        tile = TILES.get(place.tile)
        if tile is None:
            lines = {
                "small": lambda: small(view, place.width, place.height, self.keys),
                "keys": lambda: [keys_line(self.keys, place.width)],
            }.get(place.tile, list)()
            return [self._paint(line, place.width) for line in _filled(lines, place.height)]
        facts = tuple(getattr(view, name) for name in tile.facts)
        known = self._tiles.get(place)
        if known is None or known[0] != facts:
            title, note = view.kind.titles.get(place.tile, tile.title), ""
            if place.tile == "header":
                title, note = f"longhaul · {view.run}", state_of(view)
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
        side = self._paint(Text("│ ", "dim"), 2), self._paint(Text(" │", "dim"), 2)
        body = [side[0] + self._paint(line, width - 4) + side[1] for line in inner]
        return [self._paint(head, width), *body, self._paint(Text("╰" + "─" * (width - 2) + "╯", "dim"), width)]

    def _paint(self, line: Text, width: int) -> str:
        """ANSI text of exactly `width` cells."""
        line.end = ""
        segments = Segment.adjust_line_length(list(line.render(self.console)), width, style=Style.null())
        return "".join(
            (segment.style or Style.null()).render(segment.text, color_system=self._colours) for segment in segments
        )


def _filled(lines: Sequence[Text], height: int) -> list[Text]:
    return [*lines[:height], *(Text() for _ in range(height - len(lines)))]


def _without_clocks(view: View) -> View:
    return replace(view, **{name: None for name in _CLOCKS})  # type: ignore[arg-type]


def _utc() -> float:
    return Clock().utc()


def open_dashboard(stream: IO[str]) -> Dashboard | None:
    """A dashboard on `stream`, or None where the terminal cannot show one."""
    console = Console(file=stream)
    return Dashboard(console) if suits(console) else None


def state_of(view: View) -> str:
    """(pure, but for the machine's time zone)"""
    begun = strftime("%a %H:%M", localtime(view.created_at))
    return f"profile {harmless(view.profile)} · {view.state} · begun {begun}"
