"""GRPO under the real master: disturbed in each way, it ends with the bytes of an unbroken run.

With all that GRPO keeps from step to step: the measured difficulties, the curriculum, the running threshold of the
entropy mask, the count of updates.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults import harness
from tests.faults.harness import Scene, in_any_memory, scene

SETTINGS = (
    "run.max_cycles=1",
    "run.steps_per_cycle=4",
    "run.checkpoint_every=2",
    "run.threads=1",
    "retry.backoff_s=0.01",
    "validation.examples_per_task=3",
    "grpo.problems=10",
    "grpo.entropy_mask=running",
    "grpo.sent.enabled=true",
    "grpo.sent.samples=2",
    "grpo.sent.min_steps=2",
    "grpo.sent.max_steps=2",
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PATIENCE_S", 280.0)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> str:
    with scene(tmp_path_factory.mktemp("unbroken") / "run") as run:
        run.launch_and_end(command(run), code=0)
        assert run.head_step() == 4
        return digest(run)


def command(run: Scene, settings: Sequence[str] = SETTINGS) -> list[str]:
    options = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "pocket-grpo-debug",
            "--run", run.name, "--runs", str(run.root / "runs"), *options]  # fmt: skip


def digest(run: Scene) -> str:
    return str(run.one("SELECT digest FROM checkpoints JOIN runs ON head=checkpoint_id"))


def rollouts_of(run: Scene, step: int) -> Callable[[], bool]:
    return run.run.rollout_file(1, step).exists


def the_worker_is_killed(run: Scene) -> None:
    """While it measures difficulties, and in a step whose rollouts are on disk."""
    master = run.launch(command(run), "worker.before_update:3:kill")
    master.wait_for(lambda: run.run.difficulties.exists() and run.run.difficulties.read_bytes().count(b"\n") > 2)
    with suppress(ProcessLookupError):
        os.kill(master.worker_pid(), signal.SIGKILL)
    assert master.end() == 0, master.text()
    assert [state for state, *_ in run.attempts(cycle=0)] == ["failed", "succeeded"]
    assert [state for state, *_ in run.attempts()] == ["failed", "succeeded"]


def the_master_is_signalled_and_killed(run: Scene) -> None:
    """SIGUSR1 in a step, kill -9 after the checkpoint that it asked for, SIGINT in a later step."""
    master = run.launch(command(run))
    master.wait_for(rollouts_of(run, 1))
    master.signal(signal.SIGUSR1)
    master.wait_for(lambda: run.head_step() >= 1)
    master.kill()
    run.wait_until_nobody_is_left()
    master = run.launch(command(run))
    master.wait_for(rollouts_of(run, 3))
    master.signal(signal.SIGINT)
    assert master.end() == 0, master.text()
    run.launch_and_end(command(run), code=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(the_worker_is_killed, id="kill -9 of the worker", marks=pytest.mark.exhaustive),
        pytest.param(the_master_is_signalled_and_killed, id="SIGUSR1, kill -9 of the master, SIGINT"),
    ],
)
def test_row_37_a_grpo_run_that_is_disturbed_ends_with_the_digest_of_an_unbroken_one(
    disturb: Callable[[Scene], None], unbroken: str, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        disturb(run)
        assert (run.head_step(), digest(run)) == (4, unbroken)


SEGMENTED = (
    *(one for one in SETTINGS if not one.startswith("grpo.")),
    "grpo.sent.enabled=false",
    "grpo.dynamic_sampling=false",
    "grpo.segment_tokens=2",
    "sampling.max_completion_tokens=8",
)


def end_of(root: Path, settings: Sequence[str]) -> str:
    """The digest of an unbroken run."""
    with scene(root) as run:
        run.launch_and_end(command(run, settings), code=0)
        return digest(run)


def kill_worker_and_master(run: Scene, settings: Sequence[str]) -> None:
    """The worker before the update of step 3, the master once the rollouts of step 4 are there; then go on."""
    master = run.launch(command(run, settings), "worker.before_update:3:kill")
    master.wait_for(rollouts_of(run, 4))
    master.kill()
    run.wait_until_nobody_is_left()
    run.launch_and_end(command(run, settings), code=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rollouts_that_take_several_steps_outlive_kills_of_worker_and_master(tmp_path: Path) -> None:
    whole = end_of(tmp_path / "unbroken", SEGMENTED)
    with scene(tmp_path / "run") as run:
        kill_worker_and_master(run, SEGMENTED)
        assert (run.head_step(), digest(run)) == (4, whole)
        assert (run.head_dir() / "waiting.json").read_bytes().count(b"problem") > 2


BESIDE = (*(one for one in SETTINGS if not one.startswith("grpo.sent")), "run.overlap=1")


SAMPLED = (*BESIDE, "run.device=cpu", "run.sampler_device=cpu")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(BESIDE, id="one device", marks=pytest.mark.exhaustive),  # self-play has it
        pytest.param(SAMPLED, id="two devices"),
    ],
)
def test_rollouts_drawn_beside_an_update_outlive_kills_of_worker_and_master(
    settings: Sequence[str], tmp_path: Path
) -> None:
    """Of a second device too, and with the bytes of a run on one."""
    whole = end_of(tmp_path / "unbroken", BESIDE)
    with scene(tmp_path / "run") as run:
        kill_worker_and_master(run, settings)
        assert (run.head_step(), digest(run)) == (4, whole)
        shares = run.rows("SELECT json_extract(metrics, '$.older_share') FROM trained_steps ORDER BY step")
        assert shares == [(None,), (1.0,), (1.0,), (1.0,)]


@pytest.mark.timeout(600)
def test_a_worker_that_loads_while_a_cycle_trains_gives_the_bytes_of_one_after_another(tmp_path: Path) -> None:
    """Its model, its curriculum and all else was restored once before, from another checkpoint."""
    settings = (*SETTINGS, "run.max_cycles=2", "run.steps_per_cycle=3")
    with scene(tmp_path / "apart") as run:
        run.launch_and_end(command(run, settings), code=0)
        expected = digest(run)
    with scene(tmp_path / "run") as run:
        hits = run.root / "hits"
        master = run.launch(
            in_any_memory(command(run, (*settings, "validation.overlap=1"))),
            "worker.after_update:2:stop",
            env={"LONGHAUL_CRASHPOINT_LOG": str(hits)},
        )
        training = master.wait_for(lambda: re.search(r"cycle 1: train attempt 1.*\(pid (\d+)\)", master.text()))
        master.wait_until_stopped(int(training[1]))
        master.wait_for(lambda: "worker.loaded" in hits.read_text())
        os.kill(int(training[1]), signal.SIGCONT)
        assert master.end() == 0, master.text()
        began = re.findall(r"cycle 2: .*\(pid (\d+)\)", master.text())  # loads ahead, begun ahead, train attempt 1
        assert len(began) > 2 and len(set(began[:3])) == 1
        assert digest(run) == expected
