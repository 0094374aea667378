"""The screen draws what it is told, when it is worth it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.display.plain import Plain
from orchestrator.display.screen import Screen
from orchestrator.display.view import View
from orchestrator.explaining import page_of
from state.layout import RunDir
from tests.builders import a_history, a_live, a_profile


@dataclass
class Shown:
    """A display that keeps what it is given."""

    views: list[View] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    pages: list[list[str]] = field(default_factory=list)

    def update(self, view: View) -> None:
        self.views.append(view)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def turn_to(self, title: str, lines: Sequence[str]) -> None:
        self.pages.append(list(lines))

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


def test_a_question_mark_opens_the_explanation_follows_the_run_and_closes_it(tmp_path: Path) -> None:
    shown = Shown()
    screen = Screen(RunDir(tmp_path), shown, None, a_profile())
    screen.explain = page_of
    screen.press(b"x")
    screen.render(a_history(), a_live(now=1.0))
    assert shown.pages == []
    screen.press(b"?")
    first = a_history()
    for now in (2.0, 3.0, 4.0):
        screen.render(first, a_live(now=now))
    assert len(shown.pages) == 1 and shown.pages[0][0].startswith("It runs: master ")
    screen.render(a_history(), a_live(now=5.0))
    assert len(shown.pages) == 2, "a commit is a new history"
    screen.press(b"?")
    screen.render(a_history(), a_live(now=6.0))
    assert shown.pages[2:] == [[]]


def test_without_a_dashboard_the_explanation_is_printed_once() -> None:
    stream = io.StringIO()
    plain = Plain(stream)
    plain.turn_to("how the run stands", ["It runs.", "It learns."])
    plain.turn_to("how the run stands", ["It runs.", "It learns more."])
    assert stream.getvalue() == "how the run stands:\nIt runs.\nIt learns.\n"
    plain.turn_to("how the run stands", [])
    plain.turn_to("how the run stands", ["It stopped."])
    assert stream.getvalue().endswith("It stopped.\n")
