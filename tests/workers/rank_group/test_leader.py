"""Workers with two ranks, as processes: what they write, and that none of them is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode
from profiles.schema import Profile, Run
from state.layout import RunDir
from tests.workers import harness as h
from workers.contract import WorkerSpec

pytestmark = pytest.mark.slow
STEPS = 3


def on(ranks: int) -> Profile:
    return h.tiny_profile(run=Run(worker="azr", checkpoint_every=1, threads=1, gpus=ranks, device="cpu"))


def followers_of(spec: WorkerSpec) -> list[int]:
    started = re.search(r"ranks 1 to \d+ started: pids \[([\d, ]+)\]", h.log_of(spec))
    return [int(pid) for pid in started[1].split(",")] if started else []


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def rows_of(root: Path, step: int) -> list[dict[str, Any]]:
    """Rollouts of a step as they were stored: what was drawn, and what it earned."""
    lines = [json.loads(line) for line in RunDir(root).rollout_file(1, step).read_text().splitlines()]
    return [
        {name: row[name] for name in ("prompt_ids", "completion_ids", "reward")} for row in lines if "reward" in row
    ]


def a_copy(of: Path, root: Path, ranks: int, **fields: Any) -> WorkerSpec:
    if not root.exists():
        shutil.copytree(of, root)
    head = h.newest_checkpoint(root)
    return h.make_spec(root, on(ranks), head=head, end_step=STEPS + 1, **fields)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("begun") / "run"
    root.mkdir()
    seeded = h.make_spec(root, on(1), head=None, end_step=1, cycle=0)
    assert h.run(seeded, warm="azr") == 0, h.log_of(seeded)
    return root


@pytest.fixture(scope="module")
def whole(begun: Path) -> Path:
    """The steps done by two ranks without a break."""
    spec = a_copy(begun, begun.parent / "whole", 2)
    assert h.run(spec, warm="azr") == 0, h.log_of(spec)
    assert all(map(is_gone, followers_of(spec)))
    return begun.parent / "whole"


def test_two_ranks_draw_the_rollouts_of_one_and_learn_the_same_from_them(begun: Path, whole: Path) -> None:
    spec = a_copy(begun, begun.parent / "alone", 1)
    assert h.run(spec, warm="azr") == 0, h.log_of(spec)
    assert rows_of(whole, 1) == rows_of(begun.parent / "alone", 1) != []
    for ours, theirs in zip(
        h.events_at(whole / "cycles/0001/attempt-1", "step"), h.events_of(spec, "step"), strict=True
    ):
        assert ours.data["loss"] == pytest.approx(theirs.data["loss"], abs=1e-4)
        assert ours.data["grad_norm"] == pytest.approx(theirs.data["grad_norm"], rel=1e-3)


@pytest.mark.exhaustive  # tests/faults/test_ranks.py loses a follower through the daemon; here the leader dies too
def test_a_lost_follower_and_a_killed_leader_leave_no_process_and_the_run_ends_as_if_unbroken(
    begun: Path, whole: Path
) -> None:
    """The follower is stopped first, so that the leader waits for it when it is killed."""
    root = begun.parent / "broken"
    first = a_copy(begun, root, 2, attempt=1)
    worker = h.start(first, warm="azr")
    worker.wait_for("checkpointed", step=1)
    (follower,) = followers_of(first)
    os.kill(follower, signal.SIGTERM)  # as to every process of a run: its end is for the leader, and it would be told
    os.kill(follower, signal.SIGSTOP)
    worker.wait_for("heartbeat")
    os.kill(follower, signal.SIGKILL)
    assert worker.exit_code() == ExitCode.RANK
    said = h.result_of(first)
    assert said.error.startswith("rank 1 was ended by SIGKILL") and "rank-1.log" in said.advice
    second = a_copy(begun, root, 2, attempt=2)
    assert h.run(second, warm="azr", LONGHAUL_CRASHPOINT="worker.after_update:1:kill") == -signal.SIGKILL
    assert followers_of(second)
    h.wait_until(lambda: all(map(is_gone, [follower, *followers_of(second)])))
    third = a_copy(begun, root, 2, attempt=3)
    assert h.run(third, warm="azr") == 0, h.log_of(third)
    assert h.newest_checkpoint(root).digest == h.newest_checkpoint(whole).digest
