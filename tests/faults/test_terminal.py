"""A user at a terminal: Ctrl+X saves, Ctrl+C stops, the terminal is restored; and a terminal that disappears (E5)."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.alive import master_pid
from tests import REPOSITORY
from tests.faults.conftest import Clean
from tests.faults.harness import PATIENCE_S, Master, Scene, is_alive, scene
from tests.faults.invariants import check_invariants

CTRL_X, CTRL_C = b"\x18", b"\x03"
ALTERNATE_SCREEN, NORMAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
LONG_STEPS = {"run__checkpoint_every": 100, "fake__step_s": 0.2, "run__steps_per_cycle": 40}


@dataclass
class Terminal:
    """A pseudo-terminal: what a person types goes into `keyboard`, what is shown is read by a thread."""

    keyboard: int
    program: int
    shown: bytearray = field(default_factory=bytearray)

    def read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self.keyboard, 65536):
                self.shown += chunk

    def press(self, key: bytes) -> None:
        os.write(self.keyboard, key)

    def has_shown(self, part: bytes, since: bytes = b"") -> bool:
        """Whether it was shown after `since`. Waits for the thread that reads: who wrote it may have ended before."""
        until = time.monotonic() + PATIENCE_S
        while part not in self.shown.split(since)[-1] if since else part not in self.shown:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.program)

    def close(self) -> None:
        """Pull the plug."""
        for fd in (self.keyboard, self.program):
            with suppress(OSError):
                os.close(fd)
        self.keyboard = self.program = -1


@contextmanager
def terminal() -> Iterator[Terminal]:
    made = Terminal(*pty.openpty())
    termios.tcsetwinsize(made.program, (40, 120))
    thread = threading.Thread(target=made.read, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()


def start_on(run: Scene, screen: Terminal, crash: str = "") -> Master:
    """A master with the dashboard, whose controlling terminal it is."""
    return run.launch(
        run.command(),
        crash,
        env={"TERM": "xterm-256color", "LANG": "C.UTF-8"},
        stdin=screen.program,
        stdout=screen.program,
        stderr=screen.program,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )


def in_log(run: Scene, part: str) -> bool:
    return run.run.log.exists() and part in run.run.log.read_text()


def test_ctrl_x_saves_and_ctrl_c_stops_and_the_terminal_is_given_back(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **LONG_STEPS) as run, terminal() as screen:
        before = screen.modes()
        master = start_on(run, screen)
        master.wait_for(run.run.rollout_file(1, 2).exists)
        assert screen.has_shown(ALTERNATE_SCREEN)
        assert screen.modes() != before, "keys come one by one"
        screen.press(CTRL_X)
        step = master.wait_for(lambda: max(run.head_step(), 0))
        screen.press(CTRL_C)
        assert master.end() == 0, screen.shown.decode(errors="replace")
        assert step <= run.head_step() < 40
        assert run.one("SELECT stop_reason FROM runs") == "asked to stop"
        assert screen.modes() == before
        check_invariants(run)
        assert screen.has_shown(NORMAL_SCREEN)


def test_a_stop_at_once_gives_the_terminal_back_too(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run, terminal() as screen:
        before = screen.modes()
        master = start_on(run, screen, "worker.before_update:4:sleep")
        master.wait_for(run.run.rollout_file(1, 4).exists)
        master.wait_for(lambda: in_log(run, "checkpoint of step 2 is durable"))
        screen.press(CTRL_C)
        master.wait_for(lambda: in_log(run, "stopping after this step"))
        assert run.ask("stop", "--now").returncode == 0
        assert master.end() == 75
        assert screen.modes() == before
        check_invariants(run)


def test_E5_terminal_lost_in_a_step_goes_on_without_it(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.2, run__checkpoint_every=100) as run, terminal() as screen:
        master = start_on(run, screen)
        master.wait_for(run.run.rollout_file(1, 2).exists)
        screen.close()
        assert master.end() == 0
        assert in_log(run, "the terminal is gone; going on without it")
        assert in_log(run, "finished, the one cycle is done")
        check_invariants(run, clean.ending)


def test_E5_terminal_lost_and_then_an_error_still_has_its_exit_code(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="error:4!") as run, terminal() as screen:
        master = start_on(run, screen)
        master.wait_for(lambda: in_log(run, "checkpoint of step 2 is durable"))
        screen.close()
        assert master.end() == 70
        check_invariants(run)


def test_q_leaves_the_terminal_and_the_run_goes_on_after_it_is_closed(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.5, run__checkpoint_every=100) as run, terminal() as screen:
        before = screen.modes()
        front = start_on(run, screen)
        front.wait_for(run.run.rollout_file(1, 2).exists)
        screen.press(b"q")
        front.wait_for(lambda: b"leave?" in screen.shown)
        screen.press(b"l")
        assert front.end() == 0, "the shell has its prompt"
        assert screen.modes() == before
        assert screen.has_shown(b"goes on without this terminal", since=NORMAL_SCREEN), screen.shown
        screen.close()
        watcher = run.launch(["sleep", "600"])
        watcher.wait_for(lambda: run.one("SELECT state FROM runs") == "finished")
        run.wait_until_nobody_is_left()
        assert run.attempts() == [("succeeded", 0, "")], "no worker noticed"
        watcher.wait_for(lambda: not run.run.lock.read_text() or master_pid(run.run, 0) is None)
        check_invariants(run, clean.ending)


def test_a_kill_of_what_the_shell_started_is_a_kill_of_the_master(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.5) as run, terminal() as screen:
        front = start_on(run, screen)
        front.wait_for(run.run.rollout_file(1, 2).exists)
        pid = master_pid(run.run, 0)
        assert pid and pid != front.pid
        front.kill()
        watcher = run.launch(["sleep", "600"])
        watcher.wait_for(lambda: not is_alive(pid))
        run.wait_until_nobody_is_left()
        run.finish()
        check_invariants(run, clean.ending)


def test_TERM_of_what_the_shell_started_stops_the_run_and_its_code_is_the_run_s(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **LONG_STEPS) as run, terminal() as screen:
        front = start_on(run, screen)
        front.wait_for(run.run.rollout_file(1, 2).exists)
        os.kill(front.pid, signal.SIGTERM)
        assert front.end() == 0
        assert run.one("SELECT state FROM runs") == "stopped"
        check_invariants(run)


def test_top_steers_the_run(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **LONG_STEPS | {"fake__step_s": 1}) as run, terminal() as screen:
        master = run.start()
        master.wait_for(run.run.rollout_file(1, 2).exists)
        runs = ["--runs", str(run.root / "runs")]
        top = start_top(run, screen, runs)
        master.wait_for(lambda: b"samples" in screen.shown)
        screen.press(b"p")
        master.wait_for_line("paused after step")
        master.wait_for(lambda: b"pause: " in screen.shown)
        screen.press(b"v")
        master.wait_for(lambda: run.one("SELECT count(*) FROM validations WHERE asked=1"))
        screen.press(b"+")
        master.wait_for_line("cycle 1 of 2: 1 more after it")
        screen.press(b"-p")
        master.wait_for_line("resumed after step")
        screen.press(b"q")
        assert top.end() == 0
        master.signal(signal.SIGTERM)
        assert master.end() == 0
        assert run.one("SELECT json_extract(profile, '$.run.max_cycles') FROM runs") == 1
        check_invariants(run)


def test_two_tops_steer_one_run_and_each_sees_what_the_other_did(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **LONG_STEPS | {"fake__step_s": 1}) as run, terminal() as here, terminal() as there:
        master = run.start()
        master.wait_for(run.run.rollout_file(1, 2).exists)
        runs = ["--runs", str(run.root / "runs")]
        tops = [start_top(run, screen, runs) for screen in (here, there)]
        master.wait_for(lambda: b"samples" in here.shown and b"samples" in there.shown)
        here.press(b"v")
        there.press(b"v")
        master.wait_for(lambda: b"validate: " in here.shown and b"validate: " in there.shown)
        assert run.one("SELECT count(*) FROM validations WHERE asked=1") == 1, "one validation answers both"
        here.press(b"p")
        master.wait_for(lambda: b"paused" in there.shown)
        there.press(b"p")
        master.wait_for_line("resumed after step")
        for screen, top in zip((here, there), tops, strict=True):
            screen.press(b"q")
            assert top.end() == 0
        master.signal(signal.SIGTERM)
        assert master.end() == 0
        check_invariants(run)


def test_top_of_a_finished_run_shows_it_and_its_keys_say_that_no_master_is_there(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run, terminal() as screen:
        run.finish()
        watcher = run.launch(["sleep", "600"])
        top = start_top(run, screen, ["--runs", str(run.root / "runs")])
        watcher.wait_for(lambda: b"finished" in screen.shown)
        screen.press(b"p")
        watcher.wait_for(lambda: b"no master is running" in screen.shown)
        screen.press(b"q")
        assert top.end() == 0
        assert run.one("SELECT state FROM runs") == "finished"


def start_top(run: Scene, screen: Terminal, runs: list[str]) -> Master:
    return run.launch(
        [sys.executable, "-m", "orchestrator", "top", *runs],
        env={"TERM": "xterm-256color", "LANG": "C.UTF-8"},
        stdin=screen.program,
        stdout=screen.program,
        stderr=screen.program,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_tmux_ctrl_x_saves_and_ctrl_c_stops(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **LONG_STEPS) as run, tmux(tmp_path) as keys:
        run.root.mkdir()
        code = run.root / "code"
        # Named here, since tmux would take the login shell, whatever that is. Ctrl+C reaches the shell too: without
        # the trap dash ends there and writes no code.
        shell = ["/bin/sh", "-c", f"trap : INT; {shlex.join(run.command())}; echo $? > {shlex.quote(str(code))}"]
        keys("new-session", "-d", "-x", "120", "-y", "40", "-c", str(REPOSITORY), *shell)
        watcher = run.launch(["sleep", "600"])  # what is waited for has one deadline, as everywhere
        watcher.wait_for(run.run.rollout_file(1, 2).exists)
        assert "longhaul" in keys("capture-pane", "-p")
        keys("send-keys", "C-x")
        watcher.wait_for(lambda: run.head_step() > 0)
        keys("send-keys", "C-c")
        watcher.wait_for(lambda: code.exists() and code.read_text().strip())
        assert code.read_text().strip() == "0"
        check_invariants(run)


@contextmanager
def tmux(folder: Path) -> Iterator[Any]:
    """A tmux server of its own."""
    server = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]

    def keys(*arguments: str) -> str:
        return subprocess.run([*server, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        yield keys
    finally:
        subprocess.run([*server, "kill-server"], capture_output=True, check=False)
