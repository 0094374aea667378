"""The dashboard as a user sees it: on a real pseudo-terminal, read by a terminal emulator."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from orchestrator.display.canvas import BEGIN, LEAVE
from orchestrator.display.dashboard import Dashboard, suits
from tests.builders import a_view
from tests.terminal import Terminal

CHILD = ("-m", "tests.orchestrator.dashboard_child")
Opener = Callable[..., Terminal]


@pytest.fixture
def opened() -> Iterator[Opener]:
    terminals: list[Terminal] = []

    def open_terminal(columns: int = 80, lines: int = 24) -> Terminal:
        terminals.append(Terminal(*CHILD, columns=columns, lines=lines))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


def do(terminal: Terminal, command: str, **arguments: object) -> str:
    return terminal.order(json.dumps({"do": command, **arguments}))


@pytest.mark.parametrize(("columns", "lines"), [(40, 12), (60, 20), (80, 24), (120, 40), (200, 60), (24, 6), (300, 15)])
def test_every_size_shows_what_matters_within_its_bounds(opened: Opener, columns: int, lines: int) -> None:
    terminal = opened(columns, lines)
    do(terminal, "update")
    terminal.until(lambda: "self-play" in terminal.text)
    assert len(terminal.screen.display) == lines
    assert "cycle" in terminal.text
    if lines >= 12:
        assert "deduction" in terminal.text and "0.2" in terminal.text
        assert "X checkpoint" in terminal.text


def test_a_wide_terminal_shows_everything(opened: Opener) -> None:
    terminal = opened(200, 60)
    do(terminal, "update")
    terminal.until(lambda: "X checkpoint" in terminal.text)
    for part in (
        "longhaul · night", "profile pocket", "14 of 20 steps", "held-out accuracy", "sampled", "worked", "tokens",
        "proposer", "solver", "entropy", "buffers", "1,360", "newest task", "c = b.swapcase()", "solved 38 %",
        "worker 812 MB", "master 41 MB", "next worker warm", "head step 50 9f3ca1b2", "run 'night' begins",
    ):  # fmt: skip
        assert part in terminal.text, part


def test_a_validation_is_not_measured_by_the_time_of_a_step(opened: Opener) -> None:
    terminal = opened(120, 40)
    do(terminal, "update", now=100.0, role="validate", stage="validating")
    terminal.until(lambda: "validating" in terminal.text)
    (line,) = [line for line in terminal.text.splitlines() if line.startswith("│ step ")]
    assert "of ~" not in line
    do(terminal, "update", now=102.0)
    terminal.until(lambda: "of ~" in terminal.text)


def test_a_resize_is_followed_and_leaves_no_rest(opened: Opener) -> None:
    terminal = opened(120, 40)
    do(terminal, "update", now=100.0)
    terminal.until(lambda: "X checkpoint" in terminal.text)
    for number, (columns, lines) in enumerate([(40, 12), (200, 60), (80, 24)]):
        terminal.resize(columns, lines)
        do(terminal, "update", now=101.0 + number)
        fresh = opened(columns, lines)
        do(fresh, "update", now=101.0 + number)
        for one in (terminal, fresh):
            one.until(lambda one=one: "X checkpoint" in one.text)
        assert terminal.text == fresh.text


def test_lines_are_cleared_before_they_are_written(opened: Opener) -> None:
    """Behind the last column a terminal's cursor still stands on it: clearing from there takes the border away."""
    terminal = opened(120, 40)
    do(terminal, "update", now=100.0)
    do(terminal, "update", now=102.0, note="something else")
    terminal.until(lambda: "something else" in terminal.text)
    clears = [match.start() for match in re.finditer(rb"\x1b\[K", bytes(terminal.raw))]
    assert len(clears) >= 40
    assert all(re.search(rb"\x1b\[\d+;1H(\x1b\[0m)?$", bytes(terminal.raw)[:place]) for place in clears)


def test_at_most_four_frames_a_second(opened: Opener) -> None:
    terminal = opened()
    for number in range(100):
        do(terminal, "update", now=100.0 + number / 100, note=f"note {number}")
    assert terminal.raw.count(BEGIN.encode()) == 4


def test_clocks_alone_redraw_once_a_second_and_only_their_lines(opened: Opener) -> None:
    terminal = opened()
    do(terminal, "update", now=100.0)
    before = len(terminal.raw)
    for number in range(1, 31):
        do(terminal, "update", now=100.0 + number / 10)
    assert terminal.raw.count(BEGIN.encode()) == 4
    assert len(terminal.raw) - before < 4000


def test_after_a_pause_everything_is_drawn_again(opened: Opener) -> None:
    """Ctrl+Z and fg: the shell has written on our lines meanwhile."""
    terminal = opened()
    do(terminal, "update", now=100.0)
    shown = terminal.text
    terminal.screen.erase_in_display(2)
    terminal.screen.reset_mode(1049, private=True)
    do(terminal, "update", now=160.0)
    terminal.until(lambda: "X checkpoint" in terminal.text)
    assert terminal.screen.is_alternate
    assert terminal.text.splitlines()[5:] == shown.splitlines()[5:]


def test_hostile_text_steers_nothing(opened: Opener) -> None:
    terminal = opened(120, 40)
    hostile = "x = '[bold red]no markup[/]'\x1b[2J\x1b[?1049l\x1b]0;owned\x07\n\ty = '\u202e\x9b5A'"
    do(terminal, "update", program=hostile, event="\x1b[5;5Hevil [link=http://x]y[/link]", note="\x1bc")
    terminal.until(lambda: "X checkpoint" in terminal.text)
    assert "[bold red]no markup[/]" in terminal.text
    assert "[link=http://x]" in terminal.text
    assert b"\x1b]0" not in terminal.raw and b"\x1bc" not in terminal.raw and b"\x1b[5;5H" not in terminal.raw
    assert terminal.screen.is_alternate
    assert terminal.screen.display[0].startswith("╭─ longhaul")


def test_after_the_end_the_summary_stands_on_the_normal_screen(opened: Opener) -> None:
    terminal = opened()
    do(terminal, "update")
    assert do(terminal, "close", text="done\n[b]kept[/b]: \x1b[2Jall") == "closed"
    terminal.until(lambda: "done" in terminal.text)
    assert not terminal.screen.is_alternate
    assert "self-play" not in terminal.text
    assert "[b]kept[/b]: ␛[2Jall" in terminal.text
    assert not terminal.screen.cursor.hidden


def test_an_end_by_an_exception_gives_the_terminal_back(opened: Opener) -> None:
    terminal = opened()
    do(terminal, "update")
    do(terminal, "raise")
    assert terminal.process.wait(10) == 3
    terminal.read(0.2)
    assert terminal.raw.endswith(LEAVE.encode())


def test_a_terminal_that_is_gone_turns_the_dashboard_off(opened: Opener) -> None:
    terminal = opened()
    do(terminal, "update", now=100.0)
    terminal.is_reading = False
    os.close(terminal.master)
    terminal.master = -1
    assert do(terminal, "update", now=102.0) == "closed"
    assert do(terminal, "update", now=104.0) == "closed"
    assert do(terminal, "say", text="still here") == "closed"
    assert do(terminal, "close", text="summary") == "closed"
    assert terminal.process.poll() is None


def test_a_terminal_that_takes_nothing_never_blocks(opened: Opener) -> None:
    terminal = opened(200, 60)
    terminal.is_reading = False
    for number in range(40):
        terminal.resize(200 - number % 2, 60)  # whole frames, far more than a terminal's buffer
        assert do(terminal, "update", now=100.0 + number, is_read=False) == "open"
    terminal.is_reading = True
    do(terminal, "update", now=200.0)
    do(terminal, "update", now=202.0)
    terminal.until(lambda: "X checkpoint" in terminal.text)


def test_without_a_terminal_nothing_is_written() -> None:
    stream = io.StringIO()
    dashboard = Dashboard(Console(file=stream))
    dashboard.update(a_view())
    assert (dashboard.is_open, stream.getvalue()) == (False, "")
    dashboard.close("summary")
    assert stream.getvalue() == "summary\n"


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_does_not_suit(kind: str) -> None:
    assert not suits(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": kind}))
