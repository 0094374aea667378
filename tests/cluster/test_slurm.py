"""Runs whose workers are jobs of a real Slurm: what they survive, and that they end as local ones do."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.cluster import steps_of
from orchestrator.control import ask
from profiles.errors import ExitCode
from tests.cluster.conftest import Cluster, on_slurm, started, with_profile
from tests.faults import harness
from tests.faults.conftest import Clean
from tests.faults.conftest import clean as clean
from tests.faults.harness import Master, Scene
from tests.faults.invariants import check_invariants, ending

pytestmark = pytest.mark.slow
SLOW = {"fake__step_s": 0.5, "run__checkpoint_every": 100}


def job_of(master: Master) -> str:
    """Id of the job that trains, once its first step is done."""
    master.wait_for_line("step 1 · ")
    return active_job(master)


def active_job(master: Master) -> str:
    return [line for line in master.out.read_text().splitlines() if "(job " in line][-1].split("(job ")[1][:-1]


def finish(run: Scene, cluster: Cluster) -> None:
    master = run.start(env=cluster.env)
    assert master.end() == 0, master.text()


def states(run: Scene) -> list[tuple[str, str]]:
    return [(state, failure) for state, _, failure in run.attempts()]


def test_a_run_on_slurm_ends_with_the_bytes_of_a_local_one(cluster: Cluster, clean: Clean, tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    master = run.start(env=cluster.env)
    assert master.end() == 0, master.text()
    check_invariants(run, clean.ending)
    assert list(run.run.workers.iterdir()) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("where", "kills"),
    [
        ("worker.launched", 5),
        *(
            pytest.param(point, kills, marks=pytest.mark.exhaustive)
            for point, kills in (("worker.launched", 50), ("attempt.spawned", 5), ("attempt.started", 5))
        ),
    ],
)
def test_a_master_that_dies_around_a_submission_leaves_one_job_for_each_attempt(
    where: str, kills: int, cluster: Cluster, tmp_path: Path
) -> None:
    """At `worker.launched` the job is in the queue, and no record has its id."""
    knobs = {"run__max_cycles": kills // 2, "run__steps_per_cycle": 2}
    undisturbed = Scene(tmp_path / "undisturbed", as_knobs(knobs))
    assert undisturbed.start().process.wait(600) == 0
    run = on_slurm(tmp_path / "run", **knobs)
    codes = [run.start(f"{where}:1", env=cluster.env).end()]
    while codes[-1] == -signal.SIGKILL and len(codes) <= 2 * kills:
        codes.append(run.start(f"{where}:1", env=cluster.env).end())
    assert codes[-1] == 0, run.masters[-1].text()
    assert len(codes) > kills, "each attempt of the run has been killed once at its start"
    check_invariants(run, ending(undisturbed))
    tokens = {token for (token,) in run.rows("SELECT token FROM attempts")}
    jobs = Counter(name for name in cluster.submitted() if name in tokens)
    assert jobs == dict.fromkeys(tokens, 1), "each attempt had one job"


def test_a_job_outlives_its_master_and_the_next_one_goes_on_with_it(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, fake__step_s=3.0, run__checkpoint_every=100)
    master = run.start(env=cluster.env)
    job = job_of(master)
    master.kill()
    second = run.start(env=cluster.env)
    second.wait_for_line("goes on (job ")
    assert active_job(second) == job
    assert second.end() == 0, second.text()
    assert {state for state, _ in states(run)} == {"succeeded"}, "no step was done twice"
    check_invariants(run, clean.ending)


def test_a_job_that_ends_while_no_master_is_there_is_taken_in_by_the_next(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, **SLOW)
    master = run.start(env=cluster.env)
    job_of(master)
    master.kill()
    deadline = time.monotonic() + 60
    while cluster.jobs() and time.monotonic() < deadline:
        time.sleep(0.2)
    second = run.start(env=cluster.env)
    assert second.end() == 0, second.text()
    assert "goes on" not in second.out.read_text()
    check_invariants(run, clean.ending)
    assert [state for state, _ in states(run)] == ["succeeded"]


def test_ctrl_c_saves_and_ends_the_job(cluster: Cluster, clean: Clean, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, **SLOW)
    master = run.start(env=cluster.env)
    job_of(master)
    master.signal(signal.SIGINT)
    assert master.end() == 0, master.text()
    assert cluster.jobs() == []
    assert states(run)[-1][0] == "stopped"
    finish(run, cluster)
    check_invariants(run, clean.ending)


def test_a_pause_keeps_the_job_and_a_long_one_ends_it(cluster: Cluster, clean: Clean, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, **SLOW, timeouts__paused_s=4)
    master = run.start(env=cluster.env)
    job = job_of(master)
    answer = ask(run.run, "pause", 60)
    assert answer["ok"] and "keeps the GPU" in str(answer["note"]) and len(cluster.jobs()) == 1
    assert ask(run.run, "resume", 60)["ok"]
    assert ask(run.run, "validate", 60)["ok"], "of the steps so far, in a job of its own"
    assert ask(run.run, "pause", 60)["ok"]
    master.wait_for_line("the GPU is free")
    assert cluster.jobs() == []
    assert ask(run.run, "resume", 60)["ok"]
    assert master.end() == 0, master.text()
    assert active_job(master) != job
    check_invariants(run, clean.ending)


def test_a_paused_job_goes_on_whose_master_died_before_it_could_tell(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, **SLOW, timeouts__paused_s=20)
    master = run.start(env=cluster.env)
    job_of(master)
    assert ask(run.run, "pause", 60)["ok"]
    master.kill()
    with closing(sqlite3.connect(run.run.store)) as db, db:  # it resumed the run; its message was never sent
        db.execute("DELETE FROM requests WHERE kind='pause'")
    second = run.start(env=cluster.env)
    assert second.end() == 0, second.text()
    assert [state for state, _ in states(run)] == ["succeeded"], "the pause was not waited out, which ends the job"
    check_invariants(run, clean.ending)


def test_a_second_ctrl_c_cancels_the_job(cluster: Cluster, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, **SLOW)
    master = run.start("worker.before_update:2:sleep", env=cluster.env)
    master.wait_for(run.run.rollout_file(1, 2).exists)
    master.signal(signal.SIGINT)
    master.wait_for_line("stopping after this step")
    time.sleep(0.6)
    master.signal(signal.SIGINT)
    assert master.end() == ExitCode.ABORTED, master.text()
    assert cluster.jobs() == []


def test_a_crashed_node_is_left_out_and_the_run_ends_as_if_undisturbed(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, fake__step_s=2.0)
    master = run.start(env=cluster.env)
    node = cluster.nodes_of(job_of(master))
    cluster.node("crash", node)
    line = master.wait_for_line("left out from now on: ")
    assert node in line
    assert master.end() == 0, master.text()
    check_invariants(run, clean.ending)
    assert f"left out    {node}: lost {node} (cycle 1" in run.ask("status").stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("timeout_s", [300, 10])
def test_training_goes_on_long_before_slurm_gives_a_dead_node_up(timeout_s: int, tmp_path: Path) -> None:
    """From the death of the node to the end of the next step, elsewhere. 300 s is Slurm's default; at 10 s Slurm may be
    the first to notice, and starts the same job again."""
    with started(tmp_path / "cluster", NODE_TIMEOUT_S=str(timeout_s)) as cluster:
        run = on_slurm(tmp_path / "run", fake__step_s=1.0, run__steps_per_cycle=600, launch__poll_s=10)
        master = run.start(env=cluster.env)
        node = cluster.nodes_of(job_of(master))
        cluster.node("crash", node)
        died, before = time.monotonic(), steps_of(run.run)
        master.wait_for_line(f"left out from now on: {node} (lost {node})")
        master.wait_for(lambda: steps_of(run.run) > before)
        seconds = time.monotonic() - died
        master.signal(signal.SIGINT)
        assert master.end() == 0, master.text()
        check_invariants(run)
        assert states(run)[-1:] == [("stopped", "")]
        assert states(run)[:-1] == [("failed", "node")] or timeout_s == 10
    assert seconds < 100, seconds


def test_a_job_whose_daemon_dies_is_done_by_one_copy_alone(cluster: Cluster, clean: Clean, tmp_path: Path) -> None:
    """Its task lives on while Slurm starts the job anew elsewhere: the old copy must leave without a trace."""
    run = on_slurm(tmp_path, fake__step_s=4.0)
    master = run.start(env=cluster.env)
    node = cluster.nodes_of(job_of(master))
    cluster.node("kill", node)
    assert master.end() == 0, master.text()
    check_invariants(run, clean.ending)


def test_a_task_that_is_killed_is_a_crash_and_tried_again(cluster: Cluster, clean: Clean, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, **SLOW)
    master = run.start(env=cluster.env)
    job_of(master)
    (claim,) = run.run.cycle(1).glob("attempt-1/claim.0")
    os.kill(int(claim.read_text().split('"pid":')[1].rstrip("}")), signal.SIGKILL)
    assert master.end() == 0, master.text()
    assert ("failed", "signal:9") in states(run)
    check_invariants(run, clean.ending)


def test_a_job_that_somebody_cancels_ends_the_run_until_a_person_starts_it_again(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, **SLOW)
    master = run.start(env=cluster.env)
    job = job_of(master)
    cluster.ask("scancel", job)
    assert master.end() == ExitCode.CLUSTER, master.text()
    assert "somebody cancelled the job of cycle 1" in master.err.read_text()
    finish(run, cluster)
    check_invariants(run, clean.ending)


def test_a_held_job_is_waited_for_and_said(cluster: Cluster, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, launch__options='["--hold"]')
    master = run.start(env=cluster.env)
    master.wait_for_line("pending (JobHeldUser)")
    cluster.ask("scontrol", "release", active_job(master))
    master.wait_for_line("cycle 0: train attempt 1 succeeded")
    master.signal(signal.SIGINT)
    assert master.end() == 0, master.text()


def test_a_controller_that_restarts_is_no_reason_to_start_anything_twice(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, fake__step_s=3.0)
    master = run.start(env=cluster.env)
    job_of(master)
    time.sleep(6)  # a controller that is killed forgets jobs of its last seconds
    cluster.restart_controller()
    assert master.end() == 0, master.text()
    check_invariants(run, clean.ending)


def test_a_time_limit_costs_no_step_and_the_next_job_goes_on(cluster: Cluster, clean: Clean, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, fake__step_s=9.0, launch__time_limit_minutes=1)
    master = run.start(env=cluster.env)
    assert master.process.wait(180) == 0, master.text()
    assert ("stopped", "") in states(run), states(run)
    assert {state for state, _ in states(run)} <= {"stopped", "succeeded"}
    check_invariants(run, clean.ending)


@pytest.mark.exhaustive
def test_with_the_master_away_a_job_at_its_limit_requeues_itself_and_goes_on(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, fake__step_s=1.0, run__checkpoint_every=100)
    master = run.start(env=cluster.env)
    job = job_of(master)
    master.kill()
    cluster.ask("scancel", "--batch", "--signal=USR1", job)
    attempt = run.run.attempt(1, 1)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not attempt.claim(1).exists():
        time.sleep(0.2)
    assert attempt.claim(1).exists(), "Slurm has started it once more"
    while time.monotonic() < deadline and cluster.jobs():
        time.sleep(0.2)
    finish(run, cluster)
    assert "restarted" in attempt.events.read_text()
    check_invariants(run, clean.ending)


@pytest.mark.exhaustive
def test_a_scheduler_that_answers_rubbish_is_no_reason_to_start_anything_twice(
    cluster: Cluster, clean: Clean, tmp_path: Path
) -> None:
    flag, programs = tmp_path / "broken", tmp_path / "programs"
    programs.mkdir()
    for name in ("squeue", "scontrol", "sacct"):
        path = programs / name
        broken = f'[ -e {flag} ] && {{ echo "Segmentation | fault ???"; exit 0; }}'
        path.write_text(f'#!/bin/sh\n{broken}\nexec /usr/bin/{name} "$@"\n')
        path.chmod(0o700)
    run = on_slurm(tmp_path / "run", fake__step_s=2.0)
    master = run.start(env={**cluster.env, "PATH": f"{programs}:{cluster.env['PATH']}"})
    job_of(master)
    flag.touch()
    time.sleep(5)
    flag.unlink()
    assert master.end() == 0, master.text()
    assert states(run) == [("succeeded", "")]
    check_invariants(run, clean.ending)


@pytest.fixture
def preempting(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with a partition whose jobs make room for those of another."""
    partitions = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=n[1-3] PriorityTier=1 PreemptMode=REQUEUE GraceTime=5 MaxTime=60 State=UP
PartitionName=high Nodes=n[1-3] PriorityTier=9 PreemptMode=OFF MaxTime=60 State=UP"""
    with started(tmp_path / "cluster", extra=partitions) as found:
        yield found


def test_a_preempted_job_saves_within_its_grace_and_another_goes_on(
    preempting: Cluster, clean: Clean, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path / "run", fake__step_s=1.0, run__checkpoint_every=100, launch__partition="low")
    master = run.start(env=preempting.env)
    job_of(master)
    preempting.ask("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
    assert master.process.wait(120) == 0, master.text()
    assert {state for state, _ in states(run)} <= {"stopped", "succeeded"}, "it was no crash"
    check_invariants(run, clean.ending)


def test_a_partition_that_is_not_there_is_refused_in_slurms_words(cluster: Cluster, tmp_path: Path) -> None:
    run = on_slurm(tmp_path, launch__partition="nowhere")
    master = run.start(env=cluster.env)
    assert master.end() == ExitCode.CLUSTER
    said = master.err.read_text()
    assert "invalid partition" in said.lower()
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--nodes=9", "PartitionNodeLimit"),
        pytest.param("--time=600", "PartitionTimeLimit", marks=pytest.mark.exhaustive),
    ],
)
def test_a_job_that_slurm_takes_and_can_never_start_ends_the_run(
    option: str, reason: str, cluster: Cluster, tmp_path: Path
) -> None:
    run = on_slurm(tmp_path, launch__options=f'["{option}"]')
    master = run.start(env=cluster.env)
    assert master.end() == ExitCode.CLUSTER, master.text()
    said = master.err.read_text()
    assert f"can never start it: {reason}" in said and "sinfo" in said
    assert "Traceback" not in said
    assert cluster.jobs() == []


def test_a_host_without_slurm_says_so(tmp_path: Path) -> None:
    run = on_slurm(tmp_path)
    master = run.start(env={"PATH": "/nowhere"})
    assert master.end() == ExitCode.CLUSTER
    assert "there is no program `sbatch` here" in master.err.read_text()


@pytest.mark.timeout(900)
def test_two_nodes_end_with_the_bytes_of_as_many_ranks_on_one(cluster: Cluster, tmp_path: Path) -> None:
    """The pocket model, self-play: one rank on each of two nodes, and two ranks on this host."""
    shared = {
        "run__device": "cpu", "run__max_cycles": 1, "run__steps_per_cycle": 2, "run__checkpoint_every": 1,
        "azr__proposals_per_task": 2, "azr__group_size": 2, "sampling__max_completion_tokens": 24,
        "timeouts__startup_s": 600, "timeouts__heartbeat_s": 300, "timeouts__step_min_s": 600,
    }  # fmt: skip
    nodes = on_slurm(tmp_path / "nodes", **shared, run__hosts=2, run__threads=1, launch__interface="lo")
    host = Scene(tmp_path / "host", as_knobs({**shared, "run__gpus": 2, "run__threads": 2}))
    digests = []
    for run in (nodes, host):
        master = launched(run, cluster, "pocket-debug")
        assert master.process.wait(900) == 0, master.text()
        digests.append(run.one("SELECT digest FROM checkpoints JOIN runs ON head=checkpoint_id"))
    assert digests[0] == digests[1]
    assert "host 1 of 2" in (nodes.run.attempt(1, 1).path / "host-1.log").read_text()


OF_POCKET = {
    "run__device": "cpu", "run__threads": 1, "launch__interface": "lo", "grpo__groups_per_step": 3,
    "grpo__group_size": 16, "sampling__max_completion_tokens": 24, "run__checkpoint_every": 200,
    "run__steps_per_cycle": 200, "timeouts__startup_s": 600, "timeouts__heartbeat_s": 300, "timeouts__step_min_s": 600,
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_a_slow_node_is_named_and_the_next_job_leaves_it_out(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranks, one on each node. That of n2 is stopped for five sixths of the time."""
    monkeypatch.setattr(harness, "PATIENCE_S", 900.0)
    run = on_slurm(tmp_path, **OF_POCKET, run__hosts=3)
    master = launched(run, cluster, "pocket-grpo-debug")
    master.wait_for_line("step 1 · ")
    with held_up(rank_on(cluster, "n2")):
        line = master.wait_for_line("n2 is slow: ")
    assert "times the median of its peers over 20 steps" in line
    assert active_job(master) in cluster.ask("squeue", "-h", "-o", "%i"), "the attempt goes on"
    master.signal(signal.SIGINT)
    assert master.end() == 0, master.text()
    assert {state for state, _ in states(run)} == {"stopped"}
    (said,) = [line for line in run.ask("status").stdout.splitlines() if "left out" in line]
    assert "n2: slow: " in said and "used again in " in said
    run.knobs["run.hosts"] = 2
    second = launched(run, cluster, "pocket-grpo-debug")
    second.wait_for_line("cycle 1: train attempt 2")
    assert second.wait_for(lambda: cluster.nodes_of(active_job(second))) == "n[1,3]"


def launched(run: Scene, cluster: Cluster, profile: str) -> Master:
    return run.launch(with_profile(run, profile), env=cluster.env)


def rank_on(cluster: Cluster, node: str) -> int:
    """The process of the rank on that node."""
    wanted = {f"SLURMD_NODENAME={node}", f"SLURM_CONF={cluster.folder / 'slurm.conf'}"}
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found = environ.read_text(errors="replace").split("\0")
            if wanted <= set(found) and any(one.startswith("LONGHAUL_RANK=") for one in found):
                return int(environ.parent.name)
    raise AssertionError(f"no rank runs on {node}")


@contextmanager
def held_up(pid: int) -> Iterator[None]:
    """The process is stopped and goes on in turns."""
    is_over = threading.Event()

    def hold() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.25)
            os.kill(pid, signal.SIGCONT)
            is_over.wait(0.05)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def as_knobs(settings: dict[str, object]) -> dict[str, object]:
    return {name.replace("__", "."): value for name, value in settings.items()}
