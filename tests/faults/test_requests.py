"""Signals and commands to a live master: E5, E6, checkpoints on request, stops, and the replies."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import check_invariants

KILLED = -signal.SIGKILL
QUIET = {"run__checkpoint_every": 100, "fake__step_s": 0.2}
"""Steps that last, and no checkpoint but those that are asked for and the last."""
SLEEP_IN_STEP_4 = "worker.before_update:4:sleep"
"""The worker's threads go on, its step does not."""


def in_step(run: Scene, step: int, crash: str = "") -> Master:
    """A master whose worker has the rollouts of that step, and is about to learn from them."""
    master = run.start(crash)
    master.wait_for(run.run.rollout_file(1, step).exists)
    return master


def checkpoints(run: Scene) -> list[int]:
    return [step for (step,) in run.rows("SELECT step FROM checkpoints WHERE cycle=1 ORDER BY step")]


def test_a_stop_whose_checkpoint_fails_says_so_and_is_no_success(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2, crash="ckpt.files_written:2:eio")
        stopped = run.ask("stop")
        assert stopped.returncode == 1 and "could not be saved" in stopped.stdout
        assert master.end() == ExitCode.DISK
        assert "asked to stop, but steps 1 to" in master.text()
        assert run.one("SELECT state FROM runs") == "failed"
        run.finish()
        check_invariants(run, clean.ending)


def test_USR1_makes_a_durable_checkpoint_without_stopping(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        master.signal(signal.SIGUSR1)
        line = master.wait_for_line("is durable (")
        master.wait_for(lambda: len(checkpoints(run)) == 1)
        step = checkpoints(run)[0]
        assert (run.head_step(), step) == (step, step), line
        master.kill()
        assert run.head_step() == step, "it outlives the master"
        run.finish()
        check_invariants(run, clean.ending)


def test_E6_a_hundred_USR1_in_one_step_are_one_checkpoint(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET | {"fake__step_s": 1}) as run:
        master = in_step(run, 2)  # the step after it has just begun
        for _ in range(100):
            master.signal(signal.SIGUSR1)
        assert master.end() == 0
        assert len(checkpoints(run)) == 2, "the one that was asked for, and the last"
        check_invariants(run, clean.ending)


def test_E6_a_burst_of_INT_is_one_stop(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        for _ in range(100):
            master.signal(signal.SIGINT)
        assert master.end() == 0
        assert run.attempts() == [("stopped", 0, "")]
        assert run.head_step() in (2, 3, 4)
        check_invariants(run)
        run.finish()
        check_invariants(run, clean.ending)


def test_E5_USR1_during_start_up_is_remembered(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = run.start()
        master.wait_for(lambda: catches(master.pid, signal.SIGUSR1))
        master.signal(signal.SIGUSR1)
        master.wait_for_line("the first checkpoint answers this request")
        assert master.end() == 0
        check_invariants(run, clean.ending)


def catches(pid: int, number: int) -> bool:
    """Whether the kernel knows a handler of the process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_E5_INT_during_start_up_stops_with_0(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.start()
        master.wait_for(lambda: catches(master.pid, signal.SIGUSR1))  # before it the interpreter has its own for INT
        master.signal(signal.SIGINT)
        assert master.end() == 0
        assert run.one("SELECT state FROM runs") == "stopped"
        check_invariants(run)


def test_INT_stops_after_the_step_without_a_second_checkpoint_of_it(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.3) as run:
        master = run.start()
        master.wait_for_line("checkpoint of step 2 is durable")
        master.signal(signal.SIGINT)
        assert master.end() == 0
        assert checkpoints(run) in ([2], [2, 3]), "step 3 only if it had begun"
        assert run.one("SELECT stop_reason FROM runs") == "asked to stop"
        check_invariants(run)
        run.finish()
        check_invariants(run, clean.ending)


def test_INT_during_validation_repeats_it_on_resume(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.start("worker.after_started:4:sleep")
        master.wait_for(lambda: run.attempts("validate") and run.attempts("validate")[0][0] == "running")
        master.signal(signal.SIGINT)
        assert master.end() == 0
        assert run.attempts("validate")[0][0] == "stopped"
        run.finish()
        check_invariants(run, clean.ending)


def test_a_second_INT_stops_at_once_with_75(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = in_step(run, 4, SLEEP_IN_STEP_4)
        master.wait_for(lambda: run.head_step() == 2)
        master.signal(signal.SIGINT)
        master.wait_for_line("stopping after this step")
        second = subprocess.run(["sleep", "0.5"], check=False)  # the time between two presses is what is tested
        assert second.returncode == 0
        master.signal(signal.SIGINT)
        assert master.end() == 75
        assert run.attempts() == [("stopped", 75, "")]
        assert run.head_step() == 2
        check_invariants(run)
        run.finish()
        check_invariants(run, clean.ending)


def test_TERM_stops_after_the_step(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        master.signal(signal.SIGTERM)
        assert master.end() == 0
        assert run.attempts() == [("stopped", 0, "")]
        check_invariants(run)


def test_HUP_is_survived_and_a_file_goes_on_being_written(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        master.signal(signal.SIGHUP)
        assert master.end() == 0
        assert "finished, the one cycle is done" in master.out.read_text()
        check_invariants(run, clean.ending)


def test_checkpoint_command_returns_step_and_digest_of_what_is_durable(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        answer = run.ask("checkpoint", "--json")
        master.kill()
        facts = json.loads(answer.stdout)
        assert (facts["ok"], facts["step"]) == (True, run.head_step())
        assert facts["digest"] == run.one("SELECT digest FROM checkpoints JOIN runs ON head=checkpoint_id")
        run.finish()
        check_invariants(run, clean.ending)


def test_checkpoint_asked_of_a_worker_that_dies_is_made_by_the_next(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 4, SLEEP_IN_STEP_4)
        asking = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "checkpoint", "--json", "--run", "fake", "--runs",
             str(run.root / "runs")], cwd=REPOSITORY, stdout=subprocess.PIPE,
        )  # fmt: skip
        master.wait_for_line("checkpoint at the end of the current step")
        os.kill(master.worker_pid(), signal.SIGKILL)
        facts = json.loads(asking.communicate(timeout=60)[0])
        assert facts["ok"] and facts["step"] >= 0
        assert run.attempts()[0] == ("failed", KILLED, "signal:9")
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_stop_command_returns_when_the_next_master_may_start(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        answer = run.ask("stop")
        assert (answer.returncode, "the head is step" in answer.stdout) == (0, True)
        run.finish()  # at once: the lock is free
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_stop_now_command_ends_with_75(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = in_step(run, 4, SLEEP_IN_STEP_4)
        assert run.ask("stop", "--now").returncode == 0
        assert master.end() == 75
        check_invariants(run)


def test_status_command_tells_of_the_live_master_and_its_worker(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = in_step(run, 4, SLEEP_IN_STEP_4)
        master.wait_for(lambda: run.head_step() == 2)
        facts = json.loads(run.ask("status", "--json").stdout)
        assert (facts["state"], facts["cycle"], facts["master_pid"]) == ("running", 1, master.pid)
        assert facts["worker_pid"] == master.worker_pid()
        assert facts["head"]["step"] == 2
        master.kill()
        assert json.loads(run.ask("status", "--json").stdout)["state"] == "interrupted"


def test_a_stop_before_the_master_listens_is_heard(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = run.start("store.born:1:sleep:2")
        master.wait_for(run.run.store.exists)
        assert not run.run.control_socket.exists()
        assert run.ask("stop").returncode == 0
        assert master.end() == 0
        run.finish()
        check_invariants(run)


def test_commands_without_a_master_say_so(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        for command in ("checkpoint", "stop"):
            answer = run.ask(command)
            assert answer.returncode == 66
            assert "no master is running" in answer.stderr and "Traceback" not in answer.stderr


def test_the_command_that_a_stopped_run_ends_with_goes_on_with_it(tmp_path: Path) -> None:
    """From the same working directory, wherever the folder of all runs is."""
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        master.signal(signal.SIGINT)
        assert master.end() == 0
        told = next(line for line in master.out.read_text().splitlines() if line.startswith("next "))
        words = shlex.split(told.removeprefix("next"))
        assert words[:3] == ["python", "-m", "orchestrator"]
        run.launch_and_end([sys.executable, *words[1:], "--plain"], code=0)
        assert run.head_step() == 6
