"""verl over two nodes of a real Slurm: a Ray cluster in each allocation, a crashed node, checkpoints, resumes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from state.checkpoint import problem_with
from tests.cluster.conftest import Cluster, on_slurm, with_profile
from tests.faults import harness
from tests.faults.harness import Master, Scene
from tests.workers.verl.test_settings import needs_verl

STEPS = 10
PATIENCE_S = 1800.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job of verl takes to start on a machine that runs other tests beside it."""
    monkeypatch.setattr(harness, "PATIENCE_S", PATIENCE_S)


def steps(run: Scene, attempt: str = "attempt") -> list[int]:
    """Steps that were done, by any attempt or by one."""
    return [step for (step,) in run.rows(f"SELECT DISTINCT step FROM steps WHERE attempt={attempt} ORDER BY step")]


def first_step(run: Scene, master: Master, attempt: int) -> int:
    """The first step of an attempt, once it is done."""
    return int(master.wait_for(lambda: steps(run, str(attempt)))[0])


def say(what: str, began: float) -> None:
    print(f"{what}: {time.monotonic() - began:.1f} s")  # noqa: T201 - seen with `pytest -s`


@needs_verl
@pytest.mark.exhaustive
@pytest.mark.timeout(5 * PATIENCE_S)
def test_verl_over_two_nodes_survives_the_crash_of_one_saves_stops_and_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = on_slurm(
        tmp_path, run__hosts=2, run__gpus=1, launch__interface="lo", run__steps_per_cycle=STEPS,
        run__checkpoint_every=100, validation__examples_per_task=1,
    )  # fmt: skip
    command = with_profile(run, "verl-debug")
    began = time.monotonic()
    master = run.launch(command, env=cluster.env)
    try:
        master.wait_for_line("cycle 1: train attempt 1 from step")
        say("first model validated", began)
        began = time.monotonic()
        assert first_step(run, master, 1) == 1
        say("job of the first cycle until its first step is done", began)

        asked = time.monotonic()
        master.signal(signal.SIGUSR1)
        saved = master.wait_for(lambda: max(run.head_step(), 0))
        say("request to checkpoint", asked)

        crashed = time.monotonic()
        cluster.node("crash", "n2")
        assert "n2" in master.wait_for_line("left out from now on: ")
        say("crash of a node until the job had ended", crashed)
        assert first_step(run, master, 2) == saved + 1
        say("crash of a node until a step of the next job is done", crashed)
        (job,) = cluster.ask("squeue", "-h", "-o", "%i").split()
        assert cluster.nodes_of(job) == "n[1,3]"

        asked = time.monotonic()
        master.signal(signal.SIGINT)
        assert master.end() == 0, master.text()
        say("stop to the end", asked)
        assert cluster.jobs() == [] and run.head_step() < STEPS
    finally:
        master.kill()
    run.wait_until_nobody_is_left()
    stopped_at = run.head_step()

    second = run.launch(command, env=cluster.env)
    assert second.end() == 0, second.text()
    run.wait_until_nobody_is_left()
    assert steps(run) == list(range(1, STEPS + 1))
    assert run.head_step() == STEPS > stopped_at > 0
    assert problem_with(run.head_dir(), deep=True) == ""
    assert [(state, code) for state, code, _ in run.attempts()] == [
        ("failed", ExitCode.NODE), ("stopped", 0), ("succeeded", 0),
    ]  # fmt: skip
    assert "left out    n2: lost n2 (cycle 1" in run.ask("status").stdout
