"""Hosts as processes of this one: sessions of their own that share a directory and TCP, and no descriptor."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode
from profiles.load import load_profile
from profiles.metrics import by_node
from profiles.schema import Profile
from tests import REPOSITORY
from tests.workers import harness as h
from tests.workers.rank_group.test_leader import is_gone
from workers.contract import WorkerSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 2
PROFILES = {"azr": "pocket-debug", "grpo": "pocket-grpo-debug"}
SMALL = {
    "azr": ("azr.proposals_per_task=2", "azr.group_size=2"),
    "grpo": ("grpo.groups_per_step=2",),
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine takes that runs other tests beside this one."""
    monkeypatch.setattr(h, "PATIENCE_S", 300.0)


def on(worker: str, *, hosts: int = 1, gpus: int = 1) -> Profile:
    """One thread for each rank, however many share a host."""
    sets = [f"run.hosts={hosts}", f"run.gpus={gpus}", f"run.threads={gpus}", "launch.launcher=tests:Hosts"]
    sets += ["run.device=cpu", "run.checkpoint_every=1", "sampling.max_completion_tokens=24", *SMALL[worker]]
    return load_profile(PROFILES[worker], sets).profile


def variables(spec: WorkerSpec, number: int, wait_s: float = 300.0) -> dict[str, str]:
    """What a launcher sets on each host."""
    return {
        "LONGHAUL_HOST": str(number),
        "LONGHAUL_HOSTS": str(spec.profile.run.hosts),
        "LONGHAUL_MEETING": str(directory(spec) / "hosts.json"),
        "LONGHAUL_INTERFACE": "lo",
        "LONGHAUL_NODE": f"n{number}",
        "LONGHAUL_HOSTS_WAIT_S": str(wait_s),
    }


def directory(spec: WorkerSpec) -> Path:
    return Path(spec.run_dir) / spec.attempt_dir


@contextmanager
def host(spec: WorkerSpec, number: int) -> Iterator[subprocess.Popen[bytes]]:
    with (directory(spec) / f"host-{number}.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.follower"],
            cwd=REPOSITORY, env={**os.environ, **variables(spec, number)}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ranks_of(spec: WorkerSpec, number: int) -> list[int]:
    """Their pids, once the host has started them."""
    log = directory(spec) / f"host-{number}.log"
    h.wait_until(lambda: "started" in log.read_text())
    return [int(pid) for pid in re.findall(r"\(pid (\d+)\)", log.read_text())]


def begun(root: Path, worker: str) -> Path:
    """A run with its first checkpoint, by one rank."""
    root.mkdir()
    spec = h.make_spec(root, on(worker), head=None, end_step=1, cycle=0)
    assert h.run(spec, warm=worker) == 0, h.log_of(spec)
    return root


def spec_of(root: Path, profile: Profile, **fields: Any) -> WorkerSpec:
    return h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=STEPS + 1, **fields)


def finished(spec: WorkerSpec, warm: str) -> str:
    """The digest of the last checkpoint, by a leader with all its hosts."""
    if spec.profile.run.hosts == 1:
        assert h.run(spec, warm=warm) == 0, h.log_of(spec)
    else:
        with host(spec, 1) as other:
            assert h.run(spec, warm=warm, **variables(spec, 0)) == 0, h.log_of(spec)
            assert other.wait(10) == 0
            assert all(map(is_gone, ranks_of(spec, 1)))
    return h.newest_checkpoint(Path(spec.run_dir)).digest


@pytest.mark.parametrize("worker", ["grpo", pytest.param("azr", marks=pytest.mark.exhaustive)])
def test_two_hosts_end_with_the_digest_of_two_gpus_also_after_the_loss_of_one(tmp_path: Path, worker: str) -> None:
    """Self-play loses a rank of the other host, GRPO that whole host. Either is told by name, and takes all along."""
    root = begun(tmp_path / "one", worker)
    shutil.copytree(root, tmp_path / "two")
    expected = finished(spec_of(root, on(worker, gpus=2)), worker)
    first = spec_of(tmp_path / "two", on(worker, hosts=2), attempt=1)
    with host(first, 1) as other:
        leader = h.start(first, warm=worker, **variables(first, 0))
        leader.wait_for("checkpointed", step=1)
        (rank,) = ranks_of(first, 1)
        os.kill(rank if worker == "azr" else other.pid, signal.SIGKILL)
        began = time.monotonic()
        assert leader.exit_code() == ExitCode.RANK
        h.wait_until(lambda: is_gone(rank) and is_gone(other.pid))
        assert time.monotonic() - began < 10
    said = h.result_of(first)
    assert said.error.startswith("rank 1 was ended by SIGKILL" if worker == "azr" else "host 1 is gone")
    assert "rank-1.log" in said.advice
    last = spec_of(tmp_path / "two", on(worker, hosts=2), attempt=2)
    assert finished(last, worker) == expected
    (nodes,) = [by_node(event.data) for event in h.events_at(directory(last), "step")]
    # The lost attempt may have drawn the rollouts that this one trains on.
    has_drawn = "rollouts of an earlier attempt are reused" not in h.log_of(last)
    assert nodes.keys() == {"n0", "n1"} and all(one["seconds"] > 0 for one in nodes.values())
    assert all((one["decoded"] > 0) is has_drawn for one in nodes.values())


def test_a_host_that_never_comes_and_a_worker_on_the_wrong_host_end_with_what_is_wrong(tmp_path: Path) -> None:
    root = begun(tmp_path / "run", "grpo")
    alone = spec_of(root, on("grpo", hosts=2), attempt=1)
    assert h.run(alone, warm="grpo", **variables(alone, 0, wait_s=1.0)) == ExitCode.RANK
    assert h.result_of(alone).error == "of 2 hosts, these did not come within 1 s: 1"
    wrong = spec_of(root, on("grpo", hosts=2), attempt=2)
    assert h.run(wrong, warm="grpo", **variables(wrong, 1)) == ExitCode.INPUT
    assert "the launcher started this worker as host 1 of 2" in h.result_of(wrong).error
    again = spec_of(root, on("grpo", hosts=2), attempt=1)
    assert h.run(again, warm="grpo", **variables(again, 0)) == ExitCode.LOCKED  # its meeting file is there


@pytest.mark.exhaustive
def test_four_ranks_on_two_hosts_end_within_ten_seconds_of_their_leader_and_go_on_on_one(tmp_path: Path) -> None:
    root = begun(tmp_path / "one", "grpo")
    shutil.copytree(root, tmp_path / "two")
    expected = finished(spec_of(root, on("grpo", gpus=4)), "grpo")
    first = spec_of(tmp_path / "two", on("grpo", hosts=2, gpus=2), attempt=1)
    with host(first, 1) as other:
        leader = h.start(first, warm="grpo", **variables(first, 0))
        leader.wait_for("checkpointed", step=1)
        ranks = ranks_of(first, 1)
        assert len(ranks) == 2
        leader.process.kill()
        began = time.monotonic()
        assert other.wait(10) == ExitCode.RANK
        h.wait_until(lambda: all(map(is_gone, ranks)))
        assert time.monotonic() - began < 10
        leader.close()
    assert finished(spec_of(tmp_path / "two", on("grpo", hosts=2, gpus=2), attempt=2), "grpo") == expected
