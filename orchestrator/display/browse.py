"""Pages of text in place of the dashboard's tiles: which is open, how far it is scrolled, what is searched. (pure)

`Browser.press` takes keys and returns those that are for the run. The display wraps and cuts what `Browser.page` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.display.keys import deliberate

PAGES = {"?": "explain", "e": "events", "s": "samples", "m": "metrics"}
"""Key -> the page that it opens, and closes again."""
TITLES = {
    "explain": "how the run stands",
    "events": "events",
    "samples": "newest tasks and rollouts",
    "metrics": "metrics",
}
LEAVE = "leave"
"""The page that asks what `q` is to do."""
LEAVE_LINES = (
    "l   leave the run going: it goes on in the background, and `top` shows it again",
    "s   stop it after this step, with a checkpoint, as Ctrl+C does",
    "any other key: go on here",
)
LONGEST_TERM = 60
SCROLL = {"up": -1, "k": -1, "down": 1, "j": 1}
LEAPS = {"page-up": -1, "b": -1, "page-down": 1, " ": 1}
ENDS = {"home": -1, "g": -1, "end": 1, "G": 1}


@dataclass(frozen=True)
class Entry:
    """One thing on a page. lines: harmless. style: of its first line. is_cut: cut at the edge and not wrapped."""

    lines: tuple[str, ...]
    style: str = ""
    is_cut: bool = False


@dataclass(frozen=True)
class Page:
    """What the display shows. down: lines above the first shown one; below 0: counted from the end, -1 the last."""

    title: str
    keys: str
    entries: tuple[Entry, ...]
    down: int = 0


Content = Callable[[str, str], Sequence[Entry]]
"""(page, search term) -> its entries."""


class Browser:
    """extent: (lines of the page, lines that the screen has room for), as the display last drew it."""

    def __init__(self, *, asks_to_leave: bool = False) -> None:
        self.asks_to_leave = asks_to_leave
        self.name = ""
        """The open page; empty: the dashboard."""
        self.term = ""
        self.is_typing = False
        self.down = 0
        self.extent = (0, 1)

    def press(self, keys: Sequence[str]) -> list[str]:
        """Turn pages, scroll and search. Returns the keys that are left for the run."""
        chosen = keys if self.is_typing else deliberate(keys)
        return [left for key in chosen if (left := self._press(key))]

    def page(self, content: Content) -> Page | None:
        """The open page; None: the dashboard."""
        if not self.name:
            return None
        if self.name == LEAVE:
            return Page("leave?", "", tuple(Entry((line,)) for line in LEAVE_LINES))
        nothing = Entry(("nothing found" if self.term else "nothing is here yet",), "dim")
        entries = tuple(content(self.name, self.term)) or (nothing,)
        return Page(self._title(), self._keys(), entries, self.down)

    def _title(self) -> str:
        searched = f" with '{self.term}'" if self.term and not self.is_typing else ""
        return TITLES[self.name] + searched

    def _keys(self) -> str:
        if self.is_typing:
            return f"search: {self.term}▏"
        key = next(key for key, name in PAGES.items() if name == self.name)
        return f"{key} goes back" if self.name == "explain" else f"↑ ↓ scroll · / search · {key} goes back"

    def open(self, name: str) -> None:
        self.name, self.term, self.is_typing = name, "", False
        self.down = -1 if name == "events" else 0

    def close(self) -> None:
        self.open("")

    def _press(self, key: str) -> str:
        if self.name == LEAVE:
            self.close()
            return {"l": "leave", "s": "stop"}.get(key, "ctrl-x" if key == "ctrl-x" else "")
        if self.is_typing:
            return self._type(key)
        if key in PAGES:
            name = PAGES[key]
            self.open("" if name == self.name else name)
            return ""
        if not self.name:
            if key == "q" and self.asks_to_leave:
                self.open(LEAVE)
                return ""
            return key
        return self._on_page(key)

    def _on_page(self, key: str) -> str:
        if key in ("q", "escape"):
            if self.term:
                self.open(self.name)
            else:
                self.close()
        elif key == "/" and self.name != "explain":
            self.is_typing = True
        elif key in SCROLL or key in LEAPS or key in ENDS:
            self._scroll(key)
        else:
            return key
        return ""

    def _scroll(self, key: str) -> None:
        total, room = self.extent
        last = max(0, total - room)
        down = last if self.down < 0 else min(self.down, last)
        if key in ENDS:
            down = 0 if ENDS[key] < 0 else last
        else:
            down += SCROLL[key] if key in SCROLL else LEAPS[key] * max(1, room - 1)
        down = max(0, min(down, last))
        # At the end of what grows, stay there.
        self.down = -1 if self.name == "events" and down == last else down

    def _type(self, key: str) -> str:
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.open(self.name)
        elif key == "backspace":
            self.term = self.term[:-1]
        elif key == "ctrl-x":
            return key
        elif len(key) == 1 and len(self.term) < LONGEST_TERM:
            self.term += key
        self.down = -1 if self.name == "events" else 0
        return ""
