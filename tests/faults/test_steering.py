"""Pause, validate and more cycles on real runs: what is stored, what survives kills, and that the model is the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.control import ask
from profiles.errors import LonghaulError
from state.reader import Reader
from state.states import RunState
from state.store import Store
from tests.builders import build_store
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants, ending
from tests.faults.test_requests import QUIET, in_step

STEPS_THAT_LAST = {"fake__step_s": 0.2}


class Asking:
    """Somebody who waits for an answer. Asks from this process: the run goes on while an interpreter starts."""

    def __init__(self, run: Scene, command: str) -> None:
        self.answer: dict[str, Any] = {}
        self.error: LonghaulError | None = None
        self._thread = threading.Thread(target=self._ask, args=(run, command))
        self._thread.start()

    def _ask(self, run: Scene, command: str) -> None:
        try:
            self.answer = ask(run.run, command, 60)
        except LonghaulError as error:
            self.error = error

    def wait(self) -> Asking:
        self._thread.join(60)
        return self


def facts(run: Scene, command: str, change: str = "") -> dict[str, Any]:
    return ask(run.run, command, 60, change=change)


def anew(run: Scene) -> list[str]:
    """The command that goes on with what the store says."""
    return [sys.executable, "-m", "orchestrator", "run", "--run", "fake", "--runs", str(run.root / "runs"), "--plain"]


def test_a_pause_keeps_the_worker_and_a_resume_goes_on_with_it(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        paused = facts(run, "pause")
        assert paused["ok"] and "keeps the GPU" in str(paused["note"])
        assert run.one("SELECT state FROM runs") == "paused"
        assert json.loads(run.ask("status", "--json").stdout)["state"] == "paused"
        assert facts(run, "resume")["note"] == "resumed"
        assert master.end() == 0
        assert run.attempts() == [("succeeded", 0, "")], "one worker did it all"
        check_invariants(run, clean.ending)


def test_a_long_pause_gives_the_gpu_back(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET, timeouts__paused_s=0.3) as run:
        master = in_step(run, 2)
        facts(run, "pause")
        master.wait_for_line("the GPU is free")
        assert run.attempts() == [("stopped", 0, "")]
        assert run.head_step() >= 2, "what it had trained is a checkpoint"
        assert facts(run, "checkpoint")["ok"], "a paused run answers"
        facts(run, "resume")
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_a_paused_run_whose_last_attempt_failed_can_be_started_again(clean: Clean, tmp_path: Path) -> None:
    """The disk fails while the worker gives way to a long pause: who starts the run again has seen that."""
    with scene(tmp_path / "run", **QUIET, timeouts__paused_s=0.3, retention__on_full_disk="stop") as run:
        master = in_step(run, 2, crash="ckpt.files_written:2:eio")
        Asking(run, "pause")
        assert master.end() == 73
        assert run.one("SELECT state FROM runs") == "failed"
        master = run.launch(anew(run))
        master.wait_for_line("the GPU is free")
        facts(run, "resume")
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_a_run_that_fails_before_it_pauses_is_not_said_to_be_paused(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET, retry__max_without_progress=1) as run:
        master = in_step(run, 2, crash="worker.before_update:2:sleep")
        pause = Asking(run, "pause")
        master.wait_for(lambda: run.one("SELECT state FROM runs") == "paused")
        os.kill(master.worker_pid(), signal.SIGABRT)
        assert master.end() == 70
        assert pause.wait().answer == {"ok": False, "error": "the run ended first"}
        assert "paused after" not in master.text()


@pytest.mark.parametrize("keeps_s", [300, 0.3])
def test_a_paused_run_is_still_paused_after_a_kill_of_its_master(clean: Clean, tmp_path: Path, keeps_s: float) -> None:
    with scene(tmp_path / "run", **QUIET, timeouts__paused_s=keeps_s) as run:
        master = in_step(run, 2)
        facts(run, "pause")
        master.kill()
        run.wait_until_nobody_is_left()
        second = run.start()
        second.wait_for_line("the GPU is free")
        attempts = run.attempts()
        assert facts(run, "pause")["ok"] and run.attempts() == attempts, "nothing trains"
        assert run.one("SELECT state FROM runs") == "paused"
        facts(run, "resume")
        assert second.end() == 0
        check_invariants(run, clean.ending)


def test_a_worker_killed_in_a_pause_is_replaced_after_it(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        facts(run, "pause")
        os.kill(master.worker_pid(), signal.SIGKILL)
        master.wait_for_line("the GPU is free")
        facts(run, "resume")
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_a_stop_ends_the_pause_too(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        facts(run, "pause")
        assert run.ask("stop").returncode == 0
        assert master.end() == 0
        assert run.one("SELECT state FROM runs") == "stopped"
        run.finish()
        check_invariants(run, clean.ending)


def test_resume_ends_the_pause_of_a_run_whose_master_is_gone(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        facts(run, "pause")
        master.kill()
        run.wait_until_nobody_is_left()
        said = run.ask("resume").stdout
        assert "no longer paused" in said and "orchestrator run" in said
        run.finish()
        check_invariants(run, clean.ending)


def test_a_validation_in_the_middle_of_a_cycle_changes_nothing_else(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **STEPS_THAT_LAST) as run:
        master = in_step(run, 3)
        answer = facts(run, "validate")
        scored = answer["validation"]
        assert isinstance(scored, dict) and 3 <= scored["step"] < 6
        assert run.rows("SELECT step, asked FROM validations WHERE asked=1") == [(scored["step"], 1)]
        assert master.end() == 0
        assert run.rows("SELECT * FROM requests") == []
        check_invariants(run, clean.ending)


@pytest.mark.parametrize("crash", ["attempt.planned:4", "attempt.started:4", "attempt.before_close:4"])
def test_a_validation_is_answered_once_whenever_the_master_dies(clean: Clean, tmp_path: Path, crash: str) -> None:
    """The attempts before it: seeding, its validation, training until the step."""
    with scene(tmp_path / "run", **STEPS_THAT_LAST) as run:
        master = in_step(run, 3, crash)
        client = Asking(run, "validate")
        assert master.end() == -signal.SIGKILL
        assert client.wait().error is not None
        run.wait_until_nobody_is_left()
        assert run.one("SELECT count(*) FROM requests") == 1, "the request outlives it"
        run.finish()
        assert run.one("SELECT count(DISTINCT step) FROM validations WHERE asked=1") == 1
        assert run.rows("SELECT * FROM requests") == []
        check_invariants(run, clean.ending)


def test_a_validation_whose_worker_is_killed_is_done_by_the_next(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **STEPS_THAT_LAST) as run:
        in_step(run, 3, "worker.after_started:4:sleep")  # the worker of the fourth attempt
        client = Asking(run, "validate")
        master = run.masters[-1]
        master.wait_for(lambda: run.attempts("validate") and run.attempts("validate")[-1][0] == "running")
        os.kill(master.worker_pid(), signal.SIGKILL)
        assert client.wait().answer["ok"]
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_a_validation_that_was_asked_for_and_fails_is_no_failure_of_the_run(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **STEPS_THAT_LAST) as run:
        master = in_step(run, 3, "worker.after_started:4:eio")
        answer = facts(run, "validate")
        assert not answer["ok"] and "the validation failed" in answer["error"]
        assert master.end() == 0
        assert run.rows("SELECT role, forgiven FROM attempts WHERE state='failed'") == [("validate", 1)]
        check_invariants(run, clean.ending)


def test_a_resume_does_not_hide_that_the_run_has_failed(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night")
    with closing(Store.open(run)) as store:
        store.pause("asked to", 1.0)
        store.set_run_state(RunState.FAILED, "three attempts failed", 2.0)
        store.resume()
    with closing(Reader.open(run)) as reader:
        assert (reader.history().state, reader.history().paused_at) == (RunState.FAILED, None)


def test_a_paused_run_validates_and_stays_paused(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        facts(run, "pause")
        assert facts(run, "validate")["ok"]
        assert run.one("SELECT state FROM runs") == "paused"
        assert "validated already" in facts(run, "validate")["error"], "nothing is newer"
        facts(run, "resume")
        assert master.end() == 0
        check_invariants(run, clean.ending)


def test_more_cycles_are_in_the_store_and_outlive_the_master(tmp_path: Path) -> None:
    with scene(tmp_path / "long", run__max_cycles=2) as planned:
        planned.finish()
        wanted = ending(planned)
        with scene(tmp_path / "run", **QUIET) as run:
            master = in_step(run, 2)
            assert facts(run, "cycles", "+1") == {"ok": True, "max_cycles": 2, "cycle": 1, "left": 1}
            master.kill()
            run.wait_until_nobody_is_left()
            run.launch_and_end(anew(run), code=0)
            assert run.one("SELECT stop_reason FROM runs") == "all 2 cycles are done"
            check_invariants(run, wanted)


def test_a_finished_run_gets_more_cycles_without_a_master(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        said = run.ask("cycles", "+1").stdout
        assert "cycle 1 of 2: 1 more after it; to go on: python -m orchestrator run" in said
        assert json.loads(run.ask("cycles", "--json").stdout)["left"] == 1
        run.launch_and_end(anew(run), code=0)
        assert run.one("SELECT max(cycle) FROM cycles WHERE state='committed'") == 2
        check_invariants(run)


def test_what_makes_no_sense_is_refused_in_words(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **QUIET) as run:
        master = in_step(run, 2)
        assert "'many' is no number of cycles" in facts(run, "cycles", "many")["error"]
        assert facts(run, "resume")["note"] == "the run was not paused"
        assert master.end() == 0
        assert run.ask("cycles", "many").returncode == 66
        for command in ("pause", "validate", "resume"):
            assert "no master is running" in run.ask(command).stderr
