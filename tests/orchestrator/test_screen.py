"""The screen draws what it is told, when it is worth it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.display.browse import Entry, Page
from orchestrator.display.plain import Plain
from orchestrator.display.screen import Now, Screen
from orchestrator.display.view import View
from profiles.schema import Profile
from state.history import History, StepFacts
from state.layout import RunDir
from tests.builders import a_history, a_live, a_profile


@dataclass
class Shown:
    """A display that keeps what it is given."""

    views: list[View] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    pages: list[Page | None] = field(default_factory=list)
    extent: tuple[int, int] = (0, 1)

    def update(self, view: View) -> None:
        self.views.append(view)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def turn_to(self, page: Page | None) -> None:
        self.pages.append(page)

    def close(self, summary: str) -> None:
        self.lines.append(summary)


def test_the_screen_shows_the_record_that_it_is_told(tmp_path: Path) -> None:
    shown = Shown()
    Screen(RunDir(tmp_path), shown, None, a_profile()).render(a_history(), a_live(note="checkpoint requested"))
    (view,) = shown.views
    assert (view.run, view.worker_pid, view.note) == ("night", 4711, "checkpoint requested")


def test_news_are_drawn_four_times_a_second_and_running_clocks_once(tmp_path: Path) -> None:
    shown = Shown()
    screen = Screen(RunDir(tmp_path), shown, None, a_profile())
    for now in (100.0, 100.2, 100.9, 101.0):
        screen.render(a_history(), a_live(now=now))
    assert [view.now for view in shown.views] == [100.0, 101.0]
    screen.say("news")
    for now in (101.2, 101.25, 101.6):
        screen.render(a_history(), a_live(now=now))
    assert [view.now for view in shown.views[2:]] == [101.25]


def test_without_a_keyboard_no_key_was_pressed(tmp_path: Path) -> None:
    assert Screen(RunDir(tmp_path), Shown(), None, a_profile()).read_keys() == b""


@dataclass
class Told:
    """A judge that says which page was asked for."""

    asked: list[tuple[str, str]] = field(default_factory=list)

    def content(self, name: str, term: str, steps: Sequence[StepFacts], now: Now) -> list[Entry]:
        self.asked.append((name, term))
        return [Entry((f"{name} of {now.history.name}",))]

    def meter(self, history: History, profile: Profile) -> str:
        return "stagnation ▰▱ plateau 50 %"


def test_keys_turn_pages_and_the_others_are_for_the_run(tmp_path: Path) -> None:
    shown = Shown()
    screen = Screen(RunDir(tmp_path), shown, None, a_profile())
    screen.judge = Told()
    assert screen.press(b"x") == ["x"]
    screen.render(a_history(), a_live(now=1.0))
    assert shown.pages == [] and shown.views[-1].meter == "stagnation ▰▱ plateau 50 %"
    assert screen.press(b"?") == []
    screen.render(a_history(), a_live(now=2.0))
    assert shown.pages == [Page("how the run stands", "? goes back", (Entry(("explain of night",)),), 0)]
    assert screen.press(b"?p") == ["p"]
    screen.render(a_history(), a_live(now=3.0))
    screen.render(a_history(), a_live(now=4.0))
    assert shown.pages[1:] == [None], "the dashboard again, once"


def test_without_a_dashboard_a_page_is_printed_once() -> None:
    def page(*lines: str) -> Page:
        return Page("how the run stands", "", tuple(Entry((line,)) for line in lines))

    stream = io.StringIO()
    plain = Plain(stream)
    plain.turn_to(page("It runs.", "It learns."))
    plain.turn_to(page("It runs.", "It learns more."))
    assert stream.getvalue() == "how the run stands:\nIt runs.\nIt learns.\n"
    plain.turn_to(None)
    plain.turn_to(page("It stopped."))
    assert stream.getvalue().endswith("It stopped.\n")
