"""`doctor --cluster` on a real Slurm: all well, a node that lacks the directory, a partition that is too small."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
KNOBS = (
    "run.device=cpu", "run.threads=1", "launch.launcher=slurm", "launch.cpus_per_node=1", "launch.interface=lo",
    "launch.poll_s=1",
)  # fmt: skip


def doctor(
    cluster: Cluster, runs: Path, *knobs: str, profile: str = "pocket-debug", more: tuple[str, ...] = ()
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the last finding of each check."""
    words = [word for knob in (*KNOBS, *knobs) for word in ("--set", knob)]
    command = [sys.executable, "-m", "orchestrator", "doctor", "--cluster", "--profile", profile, "--json", *more]
    done = subprocess.run(
        [*command, "--runs", str(runs), *words],
        env={**cluster.env, "OMP_NUM_THREADS": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)}


def test_two_healthy_nodes_pass_every_check_and_nothing_is_left(cluster: Cluster, tmp_path: Path) -> None:
    code, found = doctor(cluster, tmp_path, "run.hosts=2")
    assert code == 0, found
    assert {name for name, one in found.items() if one["state"] != "ok"} <= {"disk"}, "nodes of this host share it"
    assert found["nodes"]["detail"] == "n1, n2"
    assert "2 ranks: right on each" in found["all-reduce"]["detail"]
    assert {"scheduler", "job", "versions", "directory", "renames", "O_EXCL", "node locks", "clocks"} <= set(found)
    assert list(tmp_path.iterdir()) == []
    assert cluster.jobs() == []


def test_a_partition_that_is_too_small_is_refused_with_the_numbers(cluster: Cluster, tmp_path: Path) -> None:
    code, found = doctor(cluster, tmp_path, "run.hosts=5")
    assert code == ExitCode.CLUSTER
    assert "run.hosts = 5, and 3 nodes of partition main are usable" in found["job"]["detail"]
    assert "--set run.hosts=3" in found["job"]["fix"]
    code, found = doctor(cluster, tmp_path, "launch.time_limit_minutes=600")
    assert code == ExitCode.CLUSTER
    assert "a limit of 60 min" in found["job"]["detail"]
    assert "nodes" not in found, "no job was submitted"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def hidden(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder that the tasks of n2 see empty: its daemon lives behind a mount of its own."""
    folder = tmp_path / "runs"
    folder.mkdir()
    cluster.node("kill", "n2")
    inside = f"mount -t tmpfs none '{folder}' && exec slurmd -N n2 -f '{cluster.folder}/slurm.conf'"
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside], env=cluster.env, capture_output=True, check=False)
    if done.returncode:
        cluster.node("up", "n2")
        pytest.skip(f"no mount of its own for a daemon here: {done.stderr.decode().strip()}")
    time.sleep(1)
    yield folder
    cluster.node("kill", "n2")


def test_a_node_without_the_shared_directory_is_named_and_the_others_are_still_checked(
    cluster: Cluster, hidden: Path
) -> None:
    code, found = doctor(cluster, hidden, "run.hosts=3")
    assert code == ExitCode.DISK, found
    assert found["directory"]["detail"].startswith(f"{hidden} on n2: ")
    assert "is not there" in found["directory"]["detail"]
    assert found["directory"]["fix"].startswith("srun --nodelist=n2 ls -ld ")
    assert found["renames"]["state"] == found["node locks"]["state"] == "ok", "n1 and n3 share it"
    assert [name for name, one in found.items() if one["state"] == "fail"] == ["directory"]


def test_one_step_is_a_job_too_and_is_removed(cluster: Cluster, tmp_path: Path) -> None:
    before = len(cluster.submitted())
    code, found = doctor(cluster, tmp_path, profile="fake", more=("--one-step",))
    assert code == 0, found
    assert found["nodes"]["state"] == found["one step"]["state"] == "ok"
    assert len(cluster.submitted()) - before >= 3, "the check of the node, and jobs that train and validate"
    assert list(tmp_path.iterdir()) == []
