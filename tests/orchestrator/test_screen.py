"""The screen draws what it is told, when it is worth it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.display.screen import Screen
from orchestrator.display.view import View
from state.layout import RunDir
from tests.builders import a_history, a_live, a_profile


@dataclass
class Shown:
    """A display that keeps what it is given."""

    views: list[View] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def update(self, view: View) -> None:
        self.views.append(view)

    def say(self, text: str) -> None:
        self.lines.append(text)

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
