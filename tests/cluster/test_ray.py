"""Runs whose workers are jobs of a real Ray: what they survive, and that they end as local ones do."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode
from tests.cluster.ray_cluster import RayCluster, free_port, started
from tests.faults import harness
from tests.faults.conftest import Clean
from tests.faults.conftest import clean as clean
from tests.faults.harness import Master, Scene
from tests.faults.invariants import check_invariants

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("ray", "aiohttp_cors")),
        reason="ray[default] is not installed",
    ),
]
SLOW = {"fake__step_s": 0.5, "run__checkpoint_every": 100}
KNOBS = {"launch__launcher": "ray", "launch__poll_s": 1, "timeouts__startup_s": 300}


@pytest.fixture(scope="session")
def ray() -> Iterator[RayCluster]:
    with started() as found:
        yield found


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    """Instead of Slurm's."""
    yield


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts two Python processes for a job, which takes ten seconds on a host that does other work beside."""
    monkeypatch.setattr(harness, "PATIENCE_S", 240.0)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process of a worker outlives a test."""
    yield
    if "ray" not in request.fixturenames:
        return
    cluster: RayCluster = request.getfixturevalue("ray")
    for job, status in cluster.jobs().items():
        if status in ("PENDING", "RUNNING"):
            cluster.stop(job)
    deadline = time.monotonic() + 30
    while (left := workers_of(cluster)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def workers_of(cluster: RayCluster) -> list[str]:
    """Command lines of the workers that live, and of what they started."""
    lines = [" ".join(process.info["cmdline"] or []) for process in cluster.processes()]
    return [line for line in lines if "job.bash" in line or " -m workers" in line or " workers." in line]


def on_ray(folder: Path, **knobs: Any) -> Scene:
    return Scene(folder, {name.replace("__", "."): value for name, value in {**KNOBS, **knobs}.items()})


def active_job(master: Master) -> str:
    return [line for line in master.out.read_text().splitlines() if "(job " in line][-1].split("(job ")[1][:-1]


def job_of(master: Master) -> str:
    """Id of the job that trains, once its first step is done."""
    master.wait_for_line("step 1 · ")
    return active_job(master)


def pid_of(run: Scene) -> int:
    claim = json.loads((run.run.attempt(1, 1).path / "claim.0").read_text())
    return int(claim["pid"])


def finish(run: Scene, cluster: RayCluster) -> None:
    master = run.start(env=cluster.env)
    assert master.end() == 0, master.text()


def states(run: Scene) -> list[tuple[str, str]]:
    return [(state, failure) for state, _, failure in run.attempts()]


def test_a_run_on_ray_ends_with_the_bytes_of_a_local_one_and_an_id_is_never_used_twice(
    ray: RayCluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_ray(tmp_path)
    finish(run, ray)
    check_invariants(run, clean.ending)
    assert list(run.run.workers.iterdir()) == []
    tokens = {token for (token,) in run.rows("SELECT token FROM attempts")}
    jobs = {job: status for job, status in ray.jobs().items() if job in tokens}
    assert jobs == dict.fromkeys(tokens, "SUCCEEDED")
    with pytest.raises(urllib.error.HTTPError) as refused:
        ray.ask("/api/jobs/", {"entrypoint": "true", "submission_id": min(tokens)})
    assert "already exists" in refused.value.read().decode()


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3000)])])
def test_a_master_that_dies_between_submission_and_record_leaves_one_job_for_each_attempt(
    kills: int, ray: RayCluster, clean: Clean, tmp_path: Path
) -> None:
    """It dies once after each submission: a run of that many jobs is more than one run where there are many."""
    died = 0
    for number in range(kills):
        run = on_ray(tmp_path / str(number))
        while died < kills:
            master = run.start("worker.launched:1", env=ray.env)
            if (code := master.end()) != -signal.SIGKILL:
                assert code == 0, master.text()
                break
            died += 1
        finish(run, ray)
        check_invariants(run, clean.ending)
        tokens = {token for (token,) in run.rows("SELECT token FROM attempts")}
        assert {state for (state,) in run.rows("SELECT DISTINCT state FROM attempts")} == {"succeeded"}
        jobs = Counter(job for job in ray.jobs() if job in tokens)
        assert set(jobs) == tokens and max(jobs.values()) == 1
        if died == kills:
            return


def test_a_job_outlives_its_master_and_the_next_one_goes_on_with_it(
    ray: RayCluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_ray(tmp_path, fake__step_s=3.0, run__checkpoint_every=100)
    master = run.start(env=ray.env)
    job = job_of(master)
    master.kill()
    second = run.start(env=ray.env)
    second.wait_for_line("goes on (job ")
    assert active_job(second) == job
    assert second.end() == 0, second.text()
    assert {state for state, _ in states(run)} == {"succeeded"}, "no step was done twice"
    check_invariants(run, clean.ending)


@pytest.mark.exhaustive
def test_a_worker_that_is_killed_is_a_crash_and_tried_again(ray: RayCluster, clean: Clean, tmp_path: Path) -> None:
    run = on_ray(tmp_path, **SLOW)
    master = run.start(env=ray.env)
    job_of(master)
    os.kill(pid_of(run), signal.SIGKILL)
    assert master.end() == 0, master.text()
    assert states(run) == [("failed", "signal:9"), ("succeeded", "")]
    check_invariants(run, clean.ending)


@pytest.mark.exhaustive
def test_a_job_that_somebody_stops_ends_the_run_until_a_person_starts_it_again(
    ray: RayCluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_ray(tmp_path, **SLOW)
    master = run.start(env=ray.env)
    ray.stop(job_of(master))
    assert master.end() == ExitCode.CLUSTER, master.text()
    assert "somebody cancelled the job of cycle 1" in master.err.read_text()
    finish(run, ray)
    check_invariants(run, clean.ending)


@pytest.mark.exhaustive
def test_ctrl_c_saves_and_ends_the_job_and_a_second_one_stops_it(ray: RayCluster, tmp_path: Path) -> None:
    run = on_ray(tmp_path / "run", **SLOW)
    master = run.start(env=ray.env)
    job = job_of(master)
    master.signal(signal.SIGINT)
    assert master.end() == 0, master.text()
    assert (states(run)[-1][0], ray.jobs()[job]) == ("stopped", "SUCCEEDED")
    slower = on_ray(tmp_path / "slower", fake__step_s=60)
    second = slower.start(env=ray.env)
    second.wait_for(lambda: list(slower.run.cycle(1).glob("attempt-1/claim.0")))
    second.signal(signal.SIGINT)
    time.sleep(0.6)
    second.signal(signal.SIGINT)
    assert second.end() == ExitCode.ABORTED, second.text()
    assert ray.jobs()[active_job(second)] in ("STOPPED", "FAILED")


def test_a_job_without_a_place_is_waited_for_and_can_be_ended(ray: RayCluster, tmp_path: Path) -> None:
    run = on_ray(tmp_path, launch__cpus_per_node=99)
    master = run.start(env=ray.env)
    master.wait_for_line("pending (Job has not started yet. It may be waiting for resources")
    master.signal(signal.SIGINT)
    time.sleep(0.6)
    master.signal(signal.SIGINT)
    assert master.end() == ExitCode.ABORTED, master.text()
    assert run.run.attempt(0, 1).claim(1).exists(), "a copy that starts after all does nothing"


def test_a_wrong_token_is_said(ray: RayCluster, tmp_path: Path) -> None:
    run = on_ray(tmp_path)
    master = run.start(env={**ray.env, "RAY_AUTH_TOKEN": "0" * 32})
    assert master.end() == ExitCode.CLUSTER
    said = master.err.read_text()
    assert "Invalid authentication token" in said and "RAY_AUTH_TOKEN" in said
    assert "0" * 32 not in said and "Traceback" not in said


def test_no_head_is_said(tmp_path: Path) -> None:
    run = on_ray(tmp_path, launch__address=f"http://127.0.0.1:{free_port()}")
    master = run.start()
    assert master.end() == ExitCode.CLUSTER
    said = master.err.read_text()
    assert "Ray does not take the job: no answer from http://127.0.0.1" in said
    assert "curl http://127.0.0.1" in said and "Traceback" not in said


@pytest.mark.exhaustive
def test_a_head_that_dies_is_unknown_then_said_and_a_new_one_goes_on(clean: Clean, tmp_path: Path) -> None:
    """The worker's node outlives its head for a minute, and so does the worker. Its cycle is taken in."""
    run = on_ray(tmp_path, fake__step_s=2.0, timeouts__heartbeat_s=5)
    with started() as cluster:
        master = run.start(env={**cluster.env, "LONGHAUL_SCHEDULER_PATIENCE_S": "1"})
        job_of(master)
        cluster.kill("head")
        master.wait_for_line("Ray does not answer: no answer from ")
        assert master.end() == ExitCode.CLUSTER, master.text()
    assert "Ray does not take the job: no answer from" in master.err.read_text()
    assert [state for state, _ in states(run)] == ["succeeded"]
    with started() as cluster:
        finish(run, cluster)
    check_invariants(run, clean.ending)
