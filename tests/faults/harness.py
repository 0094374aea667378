"""Real masters in real processes: start one, wait for a fact, kill it at a named point, resume, and what must hold."""

from __future__ import annotations

import json
import os
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from orchestrator.copies import owner_of
from orchestrator.launchers.local import strays
from state.layout import RunDir
from tests import REPOSITORY

PATIENCE_S = 60.0
"""One deadline for everything that is waited for; nothing is expected to come near it."""

KNOBS: dict[str, Any] = {
    "run.max_cycles": 1,
    "run.steps_per_cycle": 6,
    "run.checkpoint_every": 2,
    "fake.step_s": 0,
    "retention.keep_ancestors": 1,
    "retention.keep_every": 0,
    "retry.backoff_s": 0.01,
    "timeouts.kill_s": 0.2,
}
"""A seed phase, one cycle of six steps with three checkpoints, two validations, one pruning: under a second."""

Value = TypeVar("Value")
faults: list[str] = []
"""What was done to runs in the current test; tests/faults/conftest.py counts it."""


@dataclass
class Master:
    """A started `python -m orchestrator run`, its output in files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, fact: Callable[[], Value]) -> Value:
        """The first true value of `fact`; fails if the master ends before, or when patience does."""
        pidfd = os.pidfd_open(self.pid)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                ended = bool(select.select([pidfd], [], [], 0.005)[0])
                if value := fact():
                    return value
                assert not ended, f"the master ended first\n{self.text()}"
        finally:
            os.close(pidfd)
        raise TimeoutError(f"waited for something that did not come\n{self.text()}")

    def wait_until_stopped(self, pid: int = 0) -> psutil.Process:
        """Wait until a crash point has stopped the whole process by a signal. pid: the master's own by default."""
        process = psutil.Process(pid or self.pid)
        self.wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        return process

    def wait_for_line(self, part: str) -> str:
        return self.wait_for(lambda: next((line for line in self.out.read_text().splitlines() if part in line), ""))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the master does not end\n{self.text()}") from None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE_S)

    def text(self) -> str:
        return f"--- out\n{self.out.read_text()[-6000:]}\n--- err\n{self.err.read_text()[-6000:]}"

    def worker_pid(self) -> int:
        """The process of the active attempt, once it is known."""
        return int(self.wait_for(self.newest_worker))

    def newest_worker(self) -> int:
        """The process of the newest attempt so far; 0 if there was none."""
        lines = [line for line in self.out.read_text().splitlines() if "(pid " in line]
        return int(lines[-1].split("(pid ")[1].split(")")[0]) if lines else 0


IN_ANY_MEMORY = """
import sys
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator import worker_pool
worker_pool.SPARE_BYTES = 0
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def in_any_memory(command: list[str]) -> list[str]:
    """The same `run`, whose master lets a second worker wait however little memory other tests leave free."""
    return [sys.executable, "-c", IN_ANY_MEMORY, *command[3:]]


@dataclass
class Scene:
    """One run in a folder of its own, and everybody who was started on it."""

    root: Path
    knobs: dict[str, Any] = field(default_factory=dict)
    masters: list[Master] = field(default_factory=list)
    name: str = "fake"
    reading: sqlite3.Connection | None = None
    """Asked by `rows` while it is set, in place of a connection for each question."""

    @property
    def run(self) -> RunDir:
        return RunDir(self.root / "runs" / self.name)

    def command(self, *arguments: str, **knobs: Any) -> list[str]:
        """The command line of `run`. knobs: "section__name" = value."""
        sets = {**KNOBS, **self.knobs, **{name.replace("__", "."): value for name, value in knobs.items()}}
        options = [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "orchestrator", "run", "--profile", "fake", "--run", self.name,
                "--runs", str(self.root / "runs"), *options, *arguments]  # fmt: skip

    def start(self, crash: str = "", *arguments: str, env: Mapping[str, str] | None = None, **knobs: Any) -> Master:
        """Start a master. crash: an order for state.crash, counted over all processes of this start."""
        return self.launch(self.command("--plain", *arguments, **knobs), crash, env)

    def launch(self, command: list[str], crash: str = "", env: Mapping[str, str] | None = None, **more: Any) -> Master:
        number = len(self.masters)
        self.root.mkdir(parents=True, exist_ok=True)
        out, err = self.root / f"out-{number}", self.root / f"err-{number}"
        orders = {"LONGHAUL_CRASHPOINT": crash, "LONGHAUL_CRASHPOINT_COUNT": str(self.root / f"count-{number}")}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(orders if crash else {}), **(env or {})},
                **{"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr, **more},
            )
        self.masters.append(Master(process, out, err))
        return self.masters[-1]

    def finish(self, crash: str = "", *arguments: str, code: int = 0, **knobs: Any) -> Master:
        """Start a master and wait until it ends with `code`."""
        return self.launch_and_end(self.command("--plain", *arguments, **knobs), crash, code=code)

    def launch_and_end(self, command: list[str], crash: str = "", *, code: int) -> Master:
        master = self.launch(command, crash)
        ended = master.end()
        assert ended == code, f"exit {ended}, not {code}\n{master.text()}"
        return master

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command on the same run: `status`, `checkpoint`, `stop` ..."""
        command, *rest = arguments
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", command, "--run", self.name, "--runs", str(self.root / "runs"),
             *rest],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    # --- facts -----------------------------------------------------------------------------------------------

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the store as committed now; none while there is no store, or none that can be read."""
        try:
            if self.reading is not None:
                return self.reading.execute(sql, parameters).fetchall()
            with closing(self.look()) as db:
                return db.execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError:
            return []

    def look(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.run.store}?mode=ro", uri=True, timeout=10)

    def one(self, sql: str, *parameters: Any) -> Any:
        found = self.rows(sql, *parameters)
        return found[0][0] if found else None

    @property
    def run_id(self) -> str:
        return str(self.one("SELECT run_id FROM runs") or "")

    def head_step(self) -> int:
        """Step of the head; -1: none."""
        step = self.one("SELECT step FROM checkpoints JOIN runs ON head=checkpoint_id")
        return -1 if step is None else int(step)

    def attempts(self, role: str = "train", cycle: int = 1) -> list[tuple[str, int | None, str]]:
        """(state, exit code, failure) of each attempt at a cycle, in order."""
        sql = "SELECT state, exit_code, failure FROM attempts WHERE role=? AND cycle=? ORDER BY attempt"
        return self.rows(sql, role, cycle)

    def events(self, type_: str) -> list[dict[str, Any]]:
        sql = "SELECT payload FROM events WHERE type=? ORDER BY rowid"
        return [json.loads(payload) for (payload,) in self.rows(sql, type_)]

    def head_dir(self) -> Path:
        return self.run.root / str(self.one("SELECT path FROM checkpoints JOIN runs ON head=checkpoint_id"))

    def processes(self) -> list[psutil.Process]:
        """All that carry the run's mark: its workers and what they started."""
        return strays(owner_of(self.run, self.run_id)) if self.run_id else []

    def wait_until_nobody_is_left(self) -> None:
        """Workers of a dead master leave by themselves: the lifeline."""
        deadline = time.monotonic() + PATIENCE_S
        for process in self.processes():
            process.wait(max(0.1, deadline - time.monotonic()))

    def clean_up(self) -> None:
        for master in self.masters:
            master.kill()
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()  # unlike os.kill, not if the number belongs to somebody else by now


def is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def scene(root: Path, **knobs: Any) -> Iterator[Scene]:
    """A run in `root`; removed afterwards if the test passed, as each holds 16 MB of ballast."""
    made = Scene(root, {name.replace("__", "."): value for name, value in knobs.items()})
    try:
        yield made
    except BaseException:
        made.clean_up()
        raise
    made.clean_up()
    shutil.rmtree(root, ignore_errors=True)
