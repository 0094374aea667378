"""The real trainer under the real master: killed at several points, it ends with the bytes of an unbroken run."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults import harness
from tests.faults.harness import Scene, scene

SETTINGS = (
    "run.max_cycles=1",
    "run.steps_per_cycle=4",
    "run.checkpoint_every=2",
    "run.threads=1",
    "retry.backoff_s=0.01",
    "validation.examples_per_task=3",
)


def command(pocket: Scene) -> list[str]:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    runs = str(pocket.root / "runs")
    return [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "pocket-debug", "--run", pocket.name,
            "--runs", runs, *options]  # fmt: skip


def digest(pocket: Scene) -> str:
    return str(pocket.one("SELECT digest FROM checkpoints JOIN runs ON head=checkpoint_id"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_O2_a_pocket_run_whose_worker_and_master_are_killed_ends_with_the_digest_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master after seeding, the worker amid its rollouts, then both amid the cycle."""
    monkeypatch.setattr(harness, "PATIENCE_S", 280.0)
    with scene(tmp_path / "unbroken") as unbroken, scene(tmp_path / "killed") as killed:
        unbroken.launch_and_end(command(unbroken), code=0)
        first = killed.launch(command(killed))
        first.wait_for(lambda: killed.head_step() >= 0)
        first.kill()
        killed.wait_until_nobody_is_left()
        second = killed.launch(command(killed), "worker.rollouts_half:1:kill")
        second.wait_for(lambda: killed.one("SELECT count(*) FROM steps WHERE step=2"))
        assert killed.attempts()[0][0] == "failed"
        with suppress(ProcessLookupError):  # on a busy machine we may look when the four steps are done
            os.kill(second.worker_pid(), signal.SIGKILL)
        second.kill()
        killed.wait_until_nobody_is_left()
        killed.launch_and_end(command(killed), code=0)
        assert killed.head_step() == 4
        assert digest(killed) == digest(unbroken)
