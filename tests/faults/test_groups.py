"""A service manager, a shutdown or a scheduler ends a run by sending TERM to all its processes at once."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults import harness
from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import check_invariants
from tests.faults.test_pocket import command, digest

LONG_STEPS = {"run__checkpoint_every": 100, "fake__step_s": 0.2}
"""No checkpoint but the one that a stop makes: whatever else ended the worker would lose every step."""


def everybody(master: Master) -> list[psutil.Process]:
    """The master and all that descend from it, however many sessions they lie in."""
    root = psutil.Process(master.pid)
    return [root, *root.children(recursive=True)]


def send_to_all(processes: list[psutil.Process], number: int) -> None:
    """Workers first: none shall be spared because the master was quick."""
    for process in reversed(processes):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def newest_step(run: Scene) -> int:
    return int(run.one("SELECT max(step) FROM steps") or 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_TERM_to_every_process_finishes_the_step_and_loses_nothing(number: int, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **LONG_STEPS) as run:
        master = run.start()
        master.wait_for(run.run.rollout_file(1, 3).exists)
        send_to_all(everybody(master), number)
        assert master.end() == 0, master.text()
        assert run.attempts() == [("stopped", 0, "")]
        assert run.head_step() == newest_step(run) >= 3, "every finished step is in the checkpoint"
        check_invariants(run)
        run.finish()
        check_invariants(run, clean.ending)


def test_TERM_to_every_process_while_a_worker_starts_kills_none(clean: Clean, tmp_path: Path) -> None:
    """Before its first line a worker cannot ignore anything: the master hands the signals on blocked."""
    with scene(tmp_path / "run") as run:
        master = run.start("attempt.spawned:3")  # the train worker has just been spawned when the master dies
        assert master.end() == -signal.SIGKILL
        run.wait_until_nobody_is_left()
        second = run.start("worker.before_ready:1:sleep")
        (worker,) = second.wait_for(lambda: [one for one in run.processes() if "workers" in one.cmdline()])
        worker.send_signal(signal.SIGTERM)
        second.signal(signal.SIGTERM)
        second.wait_for_line("stopping after this step")
        assert worker.is_running(), "the master ends it, nobody else"
        assert run.ask("stop", "--now").returncode == 0
        assert second.end() == 75
        run.finish()
        check_invariants(run, clean.ending)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_TERM_to_every_process_of_a_pocket_run_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sandboxes that judge programs and a tracker: in the first step of a cycle, and while it validates."""
    monkeypatch.setattr(harness, "PATIENCE_S", 280.0)
    with scene(tmp_path / "unbroken") as unbroken, scene(tmp_path / "ended") as ended:
        unbroken.launch_and_end(command(unbroken), code=0)
        first = ended.launch([*command(ended), "--set", "run.checkpoint_every=100"])
        first.wait_for(ended.run.rollout_file(1, 2).exists)
        there = everybody(first)
        assert len(there) >= 4, "master, worker, two processes of a zygote"
        send_to_all(there, signal.SIGTERM)
        assert first.end() == 0, first.text()
        assert ended.attempts() == [("stopped", 0, "")]
        assert ended.head_step() == newest_step(ended) >= 2
        second = ended.launch(command(ended))
        second.wait_for(lambda: ended.attempts("validate"))
        send_to_all(everybody(second), signal.SIGTERM)
        assert second.end() == 0, second.text()
        ended.launch_and_end(command(ended), code=0)
        assert ended.head_step() == 4
        assert digest(ended) == digest(unbroken)
        check_invariants(ended)
