"""The real trainer under the real master: killed at several points, it ends with the bytes of an unbroken run; with a
rollout engine that goes wrong it ends at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.faults import harness
from tests.faults.harness import Scene, scene
from tests.faults.test_pocket_grpo import rollouts_of

SETTINGS = (
    "run.max_cycles=1",
    "run.steps_per_cycle=4",
    "run.checkpoint_every=2",
    "run.threads=1",
    "retry.backoff_s=0.01",
    "validation.examples_per_task=3",
)


def command(pocket: Scene, *more: str) -> list[str]:
    options = [part for setting in (*SETTINGS, *more) for part in ("--set", setting)]
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


WRONG_ENGINE = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "workers.rollout.native":
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def patched(module):
            execute(module)
            choose = module.choose

            def off(logits, uniforms, sampling):
                tokens, drawn, entropy = choose(logits, uniforms, sampling)
                return tokens, drawn - 0.5 * Path({flag!r}).exists(), entropy

            module.choose = off

        spec.loader.exec_module = patched
        return spec


sys.meta_path.insert(0, Finder)
"""


@pytest.mark.timeout(300)
def test_an_engine_that_goes_wrong_amid_a_cycle_ends_the_run_with_80_and_the_head_kept(tmp_path: Path) -> None:
    """It passes the probe at the start of the attempt, and from step 2 on reports log-probs .5 nats off."""
    folder = tmp_path / "site"
    folder.mkdir()
    with scene(tmp_path / "run") as run:
        flag = run.run.rollout_file(1, 1)  # written once all of step 1 is drawn, before anything of step 2 is
        (folder / "sitecustomize.py").write_text(WRONG_ENGINE.format(flag=str(flag)))
        master = run.launch(command(run), env={"PYTHONPATH": f"{folder}:{REPOSITORY}"})
        assert master.end() == ExitCode.MISMATCH == 80, master.text()
        error = master.err.read_text()
        assert "differ from the trainer's by 0.5 nats on average, more than" in error, error
        assert "kept:  head is step 0" in error
        assert "sampling.engine=hf" in error and "Traceback" not in error
        assert [(code, failure) for _, code, failure in run.attempts()] == [(80, "MISMATCH")], "no second attempt"
        assert run.head_step() == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(("run.overlap=1",), id="one device"),
        pytest.param(
            ("run.overlap=1", "run.device=cpu", "run.sampler_device=cpu"),
            id="two devices",
            marks=pytest.mark.exhaustive,  # GRPO has it
        ),
    ],
)
def test_self_play_drawn_beside_an_update_outlives_kills_of_worker_and_master(
    settings: Sequence[str], tmp_path: Path
) -> None:
    """The worker before the update of step 3, the master once the rollouts of step 4 are there. On a second device too,
    with the bytes of a run on one."""
    with scene(tmp_path / "unbroken") as unbroken, scene(tmp_path / "killed") as killed:
        unbroken.launch_and_end(command(unbroken, "run.overlap=1"), code=0)
        master = killed.launch(command(killed, *settings), "worker.before_update:3:kill")
        master.wait_for(rollouts_of(killed, 4))
        master.kill()
        killed.wait_until_nobody_is_left()
        killed.launch_and_end(command(killed, *settings), code=0)
        assert killed.attempts()[0][0] == "failed"
        assert (killed.head_step(), digest(killed)) == (4, digest(unbroken))
        shares = killed.rows("SELECT json_extract(metrics, '$.older_share') FROM trained_steps ORDER BY step")
        assert shares == [(None,), (1.0,), (1.0,), (1.0,)]
