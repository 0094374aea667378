"""Row E2: the wall clock is set while a run waits after a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants

HOURS = 3600.0

SET_CLOCK = """
import os, sys, time
from orchestrator import clock, loop
from orchestrator.schedule import Wait

jump, is_set = float(os.environ["CLOCK_JUMP"]), os.environ["CLOCK_WHEN"] == "at start"
clock.Clock.utc = lambda self: time.time() + (jump if is_set else 0.0)
real = loop.next_action

def next_action(*arguments):
    global is_set
    action = real(*arguments)
    is_set = is_set or isinstance(action, Wait)
    return action

loop.next_action = next_action
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def finish_with_clock(run: Scene, jump: float, when: str) -> str:
    """Run to the end with a clock that jumps; what the master said. Fails where it waits for the clock."""
    command = [sys.executable, "-c", SET_CLOCK, *run.command("--plain")[3:]]
    master = run.launch(command, env={"CLOCK_JUMP": str(jump), "CLOCK_WHEN": when})
    assert master.end() == 0, master.text()
    return master.out.read_text()


@pytest.mark.parametrize("jump", [-5 * HOURS, pytest.param(-0.2, marks=pytest.mark.exhaustive), 5 * HOURS])
def test_E2_clock_set_while_a_run_waits_after_a_failure_changes_nothing(
    jump: float, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", fake__fault="error:4", retry__backoff_s=0.5) as run:
        assert "train attempt 1 failed" in finish_with_clock(run, jump, "while it waits")
        check_invariants(run, clean.ending)


def test_E2_clock_set_back_before_a_new_master_starts_costs_it_one_wait_at_most(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="error:4") as run:
        first = run.start(retry__backoff_s=300)
        first.wait_for_line("train attempt 1 failed")
        first.kill()
        finish_with_clock(run, -5 * HOURS, "at start")
        check_invariants(run, clean.ending)
