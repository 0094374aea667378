"""Rows W1 to W15: the worker dies, hangs, lies or is stopped, and the master carries on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from orchestrator.commit import read_result
from orchestrator.launchers.launcher import Handle, Started
from orchestrator.launchers.local import Local
from orchestrator.supervise import Worker
from profiles.schema import Profile
from state.layout import AttemptDir
from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, in_any_memory, scene
from tests.faults.invariants import check_invariants
from workers.contract import Message, Outcome, Result

SIGNAL_9 = "signal:9"
PATIENT = {"timeouts__heartbeat_s": 600, "timeouts__step_min_s": 600, "timeouts__startup_s": 600}
"""For a machine under load: only the deadline that a test is about may pass."""


def failures(run: Scene, role: str = "train", cycle: int = 1) -> list[str]:
    return [failure for _, _, failure in run.attempts(role, cycle)]


def reused(run: Scene, attempt: int = 2) -> list[int]:
    """Steps whose rollouts the attempt did not generate again."""
    lines = run.run.attempt(1, attempt).log.read_text().splitlines()
    return [int(line.split("step ")[1].split(":")[0]) for line in lines if "are reused" in line]


def test_W1_worker_killed_while_starting_is_followed_by_another(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **PATIENT) as run:
        master = run.start(env={"LONGHAUL_CRASHPOINT": "worker.before_ready:1:sleep"})  # in every process
        os.kill(master.worker_pid(), signal.SIGKILL)
        master.wait_for_line("cycle 0: train attempt 2")
        assert run.attempts("train", 0)[0] == ("failed", -9, SIGNAL_9)
        master.kill()
        run.finish()
        check_invariants(run, clean.ending)


def test_a_run_starts_as_many_workers_as_it_has_attempts(clean: Clean) -> None:
    """Each but the first was warm before it was needed, and none is warmed at the end, for nothing."""
    seeding_training_and_two_validations = 4
    assert clean.hits["worker.before_ready"] == seeding_training_and_two_validations


def test_W1_warm_worker_killed_is_replaced(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="no_progress:6", **PATIENT) as run:
        master = run.start()
        first = master.wait_for(lambda: warm(run, master))
        os.kill(first, signal.SIGKILL)
        master.wait_for_line("the warm worker ended (exit -9); another follows")
        assert master.wait_for(lambda: warm(run, master)) != first
        os.kill(master.worker_pid(), signal.SIGKILL)
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_while_a_cycle_trains_the_worker_that_validates_it_and_that_of_the_next_cycle_wait(tmp_path: Path) -> None:
    with scene(tmp_path / "run", run__max_cycles=2, fake__fault="no_progress:6", **PATIENT) as run:
        master = run.launch(in_any_memory(run.command("--plain")))
        both = master.wait_for(lambda: found if len(found := all_warm(run, master)) == 2 else [])
        assert master.worker_pid() not in both
        master.kill()


def warm(run: Scene, master: Master) -> int:
    """Pid of a standby while the first cycle trains, or 0."""
    return next(iter(all_warm(run, master)), 0)


def all_warm(run: Scene, master: Master) -> list[int]:
    """Pids of the standbys while the first cycle trains."""
    if not run.attempts("train", 1) or "cycle 1: train" not in master.out.read_text():
        return []
    active = master.worker_pid()
    logs = {path.stem for path in run.run.standby_logs.glob("*.log")}
    return [p.pid for p in run.processes() if p.pid != active and token(p) in logs]


def token(process: psutil.Process) -> str:
    """Empty once it has ended."""
    with suppress(psutil.Error):
        return str(process.environ().get("LONGHAUL_TOKEN", ""))
    return ""


def test_W2_worker_killed_in_generation_costs_the_unfinished_rollouts_alone(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("worker.rollouts_half:4")
        assert (failures(run), reused(run)) == ([SIGNAL_9, ""], [3])
        check_invariants(run, clean.ending)


def test_W3_worker_killed_in_the_update_repeats_the_step_from_its_rollouts(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("worker.before_update:4")
        assert (failures(run), reused(run)) == ([SIGNAL_9, ""], [3, 4])
        check_invariants(run, clean.ending)


def test_W4_O3_worker_killed_while_staging_leaves_no_staging(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.finish("ckpt.files_written:3")
        assert "removed .staging-" in master.out.read_text()
        assert (failures(run), reused(run)) == ([SIGNAL_9, ""], [3, 4])
        check_invariants(run, clean.ending)


def test_W5_staging_with_a_manifest_is_not_adopted(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.finish("ckpt.before_rename:3")
        assert "adopted" not in master.out.read_text()
        assert (failures(run), reused(run)) == ([SIGNAL_9, ""], [3, 4])
        check_invariants(run, clean.ending)


def test_W6_checkpoint_renamed_but_not_told_is_adopted_on_reaping(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.finish("ckpt.after_rename:3")
        assert "adopted c0001-s000004" in master.out.read_text()
        assert (failures(run), reused(run)) == ([SIGNAL_9, ""], [])
        assert "steps 5 to 6" in run.run.attempt(1, 2).log.read_text()
        check_invariants(run, clean.ending)


def test_W7_worker_killed_after_done_has_done_its_work(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("worker.after_done:3")
        assert run.attempts() == [("succeeded", -9, "")]
        check_invariants(run, clean.ending)


def test_W8_validation_killed_is_retried_and_training_stays(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("worker.after_started:4")
        assert run.attempts("validate") == [("failed", -9, SIGNAL_9), ("succeeded", 0, "")]
        assert run.attempts() == [("succeeded", 0, "")]
        check_invariants(run, clean.ending)


def test_W9_O6_worker_hung_in_native_code_is_dumped_and_killed(clean: Clean, tmp_path: Path) -> None:
    deadline = PATIENT | {"timeouts__heartbeat_s": 4}
    with scene(tmp_path / "run", fake__fault="hang_native:3", **deadline) as run:
        run.finish()
        assert run.attempts()[0] == ("failed", -9, "hung:heartbeat")
        assert "most recent call first" in run.run.attempt(1, 1).log.read_text()
        check_invariants(run, clean.ending)


def test_W10_worker_that_is_deaf_to_abort_is_killed(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="deaf:3", **PATIENT) as run:
        master = run.start()
        log = run.run.attempt(1, 1).log
        master.wait_for(lambda: log.exists() and "deaf from now on" in log.read_text())
        master.signal(signal.SIGINT)
        master.wait_for_line("stopping after this step")
        assert run.ask("stop", "--now").returncode == 0
        assert master.end() == 75
        assert run.attempts() == [("stopped", -9, "")]
        run.finish()
        check_invariants(run, clean.ending)


def test_W11_zombies_and_strays_of_a_worker_are_reaped_and_ended(tmp_path: Path) -> None:
    knobs = {"fake__fault": "zombie:3", "run__max_cycles": 2, "fake__step_s": 0.2}
    with scene(tmp_path / "run", **knobs, **PATIENT) as run:
        master = run.start()
        master.wait_for(lambda: sleepers(run))
        master.wait_for_line("cycle 1: train attempt 1 succeeded")
        master.wait_for(lambda: not sleepers(run) and not zombies(master))
        assert master.end() == 0
        check_invariants(run)


def sleepers(run: Scene) -> list[psutil.Process]:
    return [process for process in run.processes() if "time.sleep(86400)" in command_of(process)]


def command_of(process: psutil.Process) -> str:
    """Empty once it has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def zombies(master: Master) -> list[psutil.Process]:
    children = psutil.Process(master.pid).children(recursive=True)
    return [child for child in children if child.is_running() and status_of(child) == psutil.STATUS_ZOMBIE]


def status_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.status())
    return ""


def test_W12_heartbeats_without_progress_do_not_count(clean: Clean, tmp_path: Path) -> None:
    deadline = PATIENT | {"timeouts__step_min_s": 1}
    with scene(tmp_path / "run", fake__fault="no_progress:3", **deadline) as run:
        run.finish()
        assert run.attempts()[0][2].startswith("hung:stage")
        check_invariants(run, clean.ending)


def test_W13_a_message_of_an_old_worker_is_dropped_and_counted(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    lifeline = os.open(os.devnull, os.O_WRONLY)
    started = Started(Handle("local", "run", "new", process.pid), ours, lifeline, os.pidfd_open(process.pid))
    worker = Worker(Local(Profile(name="x")), started, tmp_path / "log", 0.0)
    for sender in ("old", "new"):
        message = Message(type="checkpointed", attempt=sender, path=f"checkpoints/{sender}")
        theirs.sendall(msgspec.json.encode(message) + b"\n")
    assert [message.path for message in worker.receive(1.0)] == ["checkpoints/new"]
    assert worker.fenced == 1
    process.kill()
    process.wait()
    worker.close()
    theirs.close()


def test_W13_a_result_of_an_old_worker_is_not_believed(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path)
    result = Result(token="old", role="train", outcome=Outcome.DONE, exit_code=0, last_step=6)
    directory.result.write_bytes(msgspec.json.encode(result))
    assert read_result(directory, "new") is None
    assert read_result(directory, "old") == result


def test_W14_worker_stopped_by_a_signal_is_waited_for(clean: Clean, tmp_path: Path) -> None:
    deadline = PATIENT | {"timeouts__heartbeat_s": 4}
    with scene(tmp_path / "run", fake__step_s=0.1, **deadline) as run:
        master = run.start()
        master.wait_for_line("checkpoint of step 2 is durable")
        worker = master.worker_pid()
        os.kill(worker, signal.SIGSTOP)
        master.wait_for_line("was stopped by a signal; its deadlines pause")
        os.kill(worker, signal.SIGCONT)
        assert master.end() == 0
        assert run.attempts() == [("succeeded", 0, "")]
        check_invariants(run, clean.ending)


def test_W15_master_stopped_by_a_signal_finds_nobody_hung(clean: Clean, tmp_path: Path) -> None:
    deadline = PATIENT | {"timeouts__heartbeat_s": 4, "timeouts__step_min_s": 4}
    with scene(tmp_path / "run", fake__step_s=1, **deadline) as run:
        master = run.start()
        master.wait_for(lambda: (run.run.rollout_file(1, 1)).exists())
        master.signal(signal.SIGSTOP)
        master.wait_for(run.run.attempt(1, 1).result.exists)
        master.signal(signal.SIGCONT)
        assert master.end() == 0
        assert run.attempts() == [("succeeded", 0, "")]
        check_invariants(run, clean.ending)
