"""`doctor --cluster` where there is no Slurm: this host as the only node, and what is refused before any job.

tests/cluster/test_doctor.py has the same with a real Slurm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import cluster_doctor
from orchestrator.node_findings import Answers
from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode
from profiles.load import load_profile
from state.weights import WEIGHTS
from tests import REPOSITORY


def doctor(runs: Path, *words: str, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "doctor", "--cluster", "--json", "--runs", str(runs), *words],
        env={**os.environ, **environment},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


@pytest.mark.timeout(300)
def test_without_a_scheduler_this_host_is_the_only_node(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "runs", "--profile", "fake")
    assert code == 0, found
    assert {"nodes", "versions", "directory"} <= set(found)
    assert not {"scheduler", "job", "renames", "all-reduce"} & set(found), "there is nobody to share with"
    assert list((tmp_path / "runs").iterdir()) == []


def test_without_slurm_s_programs_no_job_is_tried(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "runs", "--profile", "fake", "--set", "launch.launcher=slurm", PATH="/nowhere")
    assert code == ExitCode.CLUSTER
    assert "there is no program `sinfo` here" in found["scheduler"]["detail"]
    assert "nodes" not in found
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_launcher_whose_nodes_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    profile = load_profile("fake", ["launch.launcher=mine:Launcher"]).profile
    (finding,) = cluster_doctor.examine_cluster(profile, tmp_path)
    assert (finding.state, finding.exit_code) == ("fail", ExitCode.INPUT)
    assert "local and slurm" in finding.detail
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_a_torn_shard_is_named_before_a_job_waits_in_the_queue(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", WEIGHTS):
        (tmp_path / name).write_bytes((BUILT_IN["pocket"].directory / name).read_bytes())
    os.truncate(tmp_path / WEIGHTS, 10_000)
    profile = load_profile("grpo-1.5b-8gb", [f"model.path={tmp_path}"]).profile
    (finding,) = cluster_doctor.model(profile)
    assert (finding.state, finding.exit_code) == ("fail", ExitCode.INPUT)
    assert f"{tmp_path / WEIGHTS} is torn" in finding.detail
    assert finding.fix.startswith("hf download ")


@pytest.mark.parametrize(
    ("said", "node", "what"),
    [
        ("srun: error: n2: task 1: Exited with exit code 2", "n2", "task 1: Exited with exit code 2"),
        ("slurmstepd-n3: error: execve(): python: No such file", "n3", "execve(): python: No such file"),
        ("srun: error: Task launch for StepId=4.0 failed on node n1: Invalid job credential", "n1", "Invalid job"),
    ],
)
def test_what_slurm_says_of_a_task_is_told_of_its_node(said: str, node: str, what: str, tmp_path: Path) -> None:
    directory = cluster_doctor.AttemptDir(tmp_path)
    (tmp_path / "slurm-4.log").write_text(f"noise\n{said}\n")
    found = cluster_doctor.read(directory, Answers({}, 1)).said
    assert list(found) == [node]
    assert found[node].startswith(what)
