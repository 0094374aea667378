"""evaluate on a real Slurm: an array of shards, what it survives, and that it ends with the bytes of a local one."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode
from state.evaluation_array import ArrayDir, arrays_in
from tests import REPOSITORY
from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 300.0
ASKED = (
    "--model",
    "pocket",
    "--examples",
    "4",
    "--batch-size",
    "1",
    "--max-new-tokens",
    "24",
    "--device",
    "cpu",
    "--json",
)
"""Twelve questions, each a batch."""
ON_SLURM = tuple(
    word
    for knob in ("launch.launcher=slurm", "launch.cpus_per_node=1", "launch.poll_s=1", "retry.backoff_s=0.1")
    for word in ("--set", knob)
)


def started(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """evaluate, with its results in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "evaluate", *ASKED, "--out", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": "", "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE, stderr=(folder.parent / "said").open("a"), text=True, cwd=folder.parent,
    )  # fmt: skip


def ended(command: subprocess.Popen[str], code: int) -> str:
    out, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == code, said(command)
    return out


def said(command: subprocess.Popen[str]) -> str:
    assert isinstance(command.args, list)
    return (Path(command.args[command.args.index("--out") + 1]).parent / "said").read_text()


def evaluation_in(folder: Path) -> Path:
    (found,) = (path for path in folder.glob("model-*") if path.is_dir())
    return found


def arrays(folder: Path) -> list[ArrayDir]:
    return arrays_in(evaluation_in(folder)) if any(folder.glob("model-*/")) else []


def asked_in(folder: Path) -> list[str]:
    """The questions that jobs have answered, one for each answer."""
    lines = (
        line
        for path in folder.glob("model-*/array-*/shard-*/start-*/*.jsonl")
        for line in path.read_text().splitlines()
    )
    return [json.loads(line)["outcome"]["question_id"] for line in lines]


def all_of(folder: Path) -> tuple[bytes, list[Any], list[Any]]:
    """What an evaluation stores: its answers, their rows, its scores."""
    (path,) = evaluation_in(folder).glob("*.jsonl")
    with closing(sqlite3.connect(folder / "evaluations.db")) as db:
        rows = db.execute("SELECT * FROM answers ORDER BY problem_id").fetchall()
        scores = db.execute(
            "SELECT evaluation_id, suite, fingerprint, n, score, low, high, metrics FROM suites"
        ).fetchall()
    return path.read_bytes(), rows, scores


def until(fact: Callable[[], Any], command: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := fact():
            return found
        assert command.poll() is None, said(command)
        time.sleep(0.05)
    raise TimeoutError(said(command))


def claimed(array: ArrayDir) -> list[int]:
    return [one.number for one in array.shards() if one.claim(0).exists()]


def tasks_of(cluster: Cluster, folder: Path) -> list[int]:
    """How many tasks each array had, as Slurm counts them when they have ended."""
    tokens = [json.loads(one.handle.read_text())["token"] for one in arrays(folder)]
    deadline = time.monotonic() + 30
    while cluster.jobs() and time.monotonic() < deadline:
        time.sleep(0.1)
    names = Counter(cluster.submitted())
    return [names[token] for token in tokens]


Stored = tuple[str, tuple[bytes, list[Any], list[Any]]]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """(What is printed, what is stored) by a process of this host."""
    folder = tmp_path_factory.mktemp("local") / "results"
    printed = ended(started(folder), 0)
    return json.dumps(json.loads(printed)["suites"]), all_of(folder)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def matches(folder: Path, printed: str, local: Stored) -> None:
    assert json.dumps(json.loads(printed)["suites"]) == local[0]
    assert all_of(folder) == local[1]
    assert max(Counter(asked_in(folder)).values()) == 1, "a question was asked twice"


def test_of_four_shards_of_which_one_is_killed_only_that_one_is_repeated(
    cluster: Cluster, results: Path, tmp_path: Path, local: Stored
) -> None:
    kill = {"LONGHAUL_CRASHPOINT": "evaluate.answers_written:1", "LONGHAUL_CRASHPOINT_ONCE": str(tmp_path / "killed")}
    printed = ended(started(results, "--shards", "4", *ON_SLURM, **kill, **cluster.env), 0)
    first, second = arrays(results)
    assert [one.number for one in first.shards()] == [0, 1, 2, 3]
    (repeated,) = (one.number for one in second.shards())
    assert f"shard {repeated} failed" in (tmp_path / "said").read_text()
    assert tasks_of(cluster, results) == [4, 1]
    matches(results, printed, local)


def test_a_command_may_be_killed_anywhere_around_its_array_and_there_is_one_array_alone(
    cluster: Cluster, results: Path, tmp_path: Path, local: Stored
) -> None:
    words = ("--shards", "2", *ON_SLURM)
    for point in ("evaluate.array_planned:1", "evaluate.array_submitted:1"):
        ended(started(results, *words, LONGHAUL_CRASHPOINT=point, **cluster.env), -signal.SIGKILL)
    command = started(results, *words, **cluster.env)
    until(lambda: asked_in(results), command)
    command.kill()
    ended(command, -signal.SIGKILL)
    assert "going on with array" in (tmp_path / "said").read_text()
    printed = ended(started(results, *words, **cluster.env), 0)
    assert tasks_of(cluster, results) == [2]
    matches(results, printed, local)


@pytest.mark.exhaustive
def test_ctrl_c_cancels_the_array_and_keeps_its_answers_also_for_a_command_without_a_cluster(
    cluster: Cluster, results: Path, local: Stored
) -> None:
    env = {**cluster.env, "LONGHAUL_CRASHPOINT": "evaluate.answers_written:3:sleep:600"}
    command = started(results, "--shards", "1", *ON_SLURM, **env)
    until(lambda: len(asked_in(results)) == 3, command)
    command.send_signal(signal.SIGINT)
    ended(command, 130)
    assert cluster.jobs() == []
    printed = ended(started(results), 0)
    assert len(asked_in(results)) == 3
    matches(results, printed, local)


def test_a_scheduler_that_hangs_delays_no_evaluation_whose_jobs_are_at_work(
    cluster: Cluster, results: Path, tmp_path: Path, local: Stored
) -> None:
    flag, programs = tmp_path / "hangs", tmp_path / "programs"
    programs.mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        path = programs / name
        path.write_text(f'#!/bin/sh\nwhile [ -e {flag} ]; do sleep 0.1; done\nexec /usr/bin/{name} "$@"\n')
        path.chmod(0o700)
    env = {**cluster.env, "PATH": f"{programs}:{cluster.env['PATH']}"}
    command = started(results, "--shards", "1", *ON_SLURM, **env)
    until(lambda: arrays(results) and claimed(arrays(results)[0]), command)
    flag.touch()
    try:
        printed = ended(command, 0)
    finally:
        flag.unlink()
    assert tasks_of(cluster, results) == [1]
    matches(results, printed, local)


@pytest.mark.exhaustive
def test_a_shard_that_never_begins_is_tried_a_few_times_and_then_told_with_its_log(
    cluster: Cluster, results: Path, tmp_path: Path
) -> None:
    words = ("--shards", "1", *ON_SLURM, "--set", "retry.max_without_progress=2", "--set", 'launch.setup=["exit 3"]')
    ended(started(results, *words, **cluster.env), ExitCode.CLUSTER)
    said = (tmp_path / "said").read_text()
    assert "error: shard 0 ended 2 times without another answer: the worker never began" in said
    assert f"next:  tail {arrays(results)[1].shard(0).log}" in said
    assert tasks_of(cluster, results) == [1, 1]


@pytest.mark.exhaustive
def test_a_shard_that_somebody_cancels_is_not_started_again_unasked(
    cluster: Cluster, results: Path, tmp_path: Path
) -> None:
    words = ("--shards", "2", *ON_SLURM, "--set", 'launch.setup=["sleep 60"]')
    command = started(results, *words, **cluster.env)
    until(lambda: "2 running" in (tmp_path / "said").read_text(), command)
    job = json.loads(arrays(results)[0].handle.read_text())["job"]
    cluster.ask("scancel", job)
    ended(command, ExitCode.CLUSTER)
    assert f"error: somebody cancelled shard 0 of array {job}" in (tmp_path / "said").read_text()
    assert len(arrays(results)) == 1


def test_a_partition_that_is_not_there_is_refused_in_slurms_words(
    cluster: Cluster, results: Path, tmp_path: Path
) -> None:
    ended(started(results, *ON_SLURM, "--set", "launch.partition=nowhere", **cluster.env), ExitCode.CLUSTER)
    said = (tmp_path / "said").read_text()
    assert "invalid partition" in said.lower() and "no job was submitted" in said
    assert "Traceback" not in said


def test_a_host_without_slurm_says_so(results: Path, tmp_path: Path) -> None:
    ended(started(results, *ON_SLURM, PATH="/nowhere"), ExitCode.CLUSTER)
    assert "there is no program `sbatch` here" in (tmp_path / "said").read_text()


def test_at_its_time_limit_a_task_alone_goes_back_into_the_queue(
    cluster: Cluster, results: Path, tmp_path: Path, local: Stored
) -> None:
    # One task sleeps after its first answer: its six questions would be answered before the signal arrives.
    sleep = {
        "LONGHAUL_CRASHPOINT": "evaluate.answers_written:1:sleep",
        "LONGHAUL_CRASHPOINT_ONCE": str(tmp_path / "it"),
    }
    command = started(results, "--shards", "2", *ON_SLURM, **sleep, **cluster.env)
    until(lambda: len(list(results.glob("model-*/array-*/shard-*/job.exit"))) == 1, command)
    (array,) = arrays(results)
    number = next(one.number for one in array.shards() if not (one.path / "job.exit").exists())
    cluster.ask("scancel", "--batch", "--signal=USR1", f"{json.loads(array.handle.read_text())['job']}_{number}")
    until(array.shard(number).claim(1).exists, command)
    printed = ended(command, 0)
    assert not array.shard(1 - number).claim(1).exists()
    assert len(arrays(results)) == 1
    matches(results, printed, local)


@pytest.mark.exhaustive
def test_a_shard_whose_node_crashes_goes_on_elsewhere(
    cluster: Cluster, results: Path, tmp_path: Path, local: Stored
) -> None:
    command = started(results, "--shards", "1", *ON_SLURM, **cluster.env)
    until(lambda: asked_in(results), command)
    (array,) = arrays(results)
    cluster.node("crash", cluster.nodes_of(json.loads(array.handle.read_text())["job"]))
    printed = ended(command, 0)
    matches(results, printed, local)
