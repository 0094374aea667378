"""Runs of the worker open_instruct through real masters, with a stand-in for the program (`stand_in.py`)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from profiles.errors import ExitCode
from state.layout import RunDir
from tests.workers.open_instruct.setting import Stage, git, stage
from workers.open_instruct.checkpoints import read_layout


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as found:
        yield found


def logs(job: Stage) -> str:
    return "".join(path.read_text() for path in sorted(job.scene.run.root.rglob("open_instruct.log")))


def checkpoint(run: RunDir, step: int) -> Path:
    (found,) = run.checkpoints.glob(f"c0001-s{step:06d}-*")
    return found


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_steps_checkpoints_and_the_model_of_the_program_become_those_of_the_run(job: Stage) -> None:
    job.finish()
    run = job.scene.run
    assert job.steps() == list(range(1, 9))
    first, second, *_ = (facts.metrics for facts in job.rows())
    assert {"reward": 0.25, "truncated": 0.25, "tokens": 800, "steps_per_second": 0.5}.items() <= first.items()
    assert first["loss"] == 0.5 and "loss" not in second  # it was NaN
    assert job.scene.attempts() == [("succeeded", 0, "")] and job.scene.attempts("validate") == []
    third, last = checkpoint(run, 3), checkpoint(run, 8)
    assert read_layout(third).tag == "global_step6" and read_layout(third).learners == 2
    assert len(list((third / "global_step6").iterdir())) == 4
    assert read_layout(last).has_model and (last / "model" / "model.safetensors").read_text() == "weights"
    assert alive(job.setting.helpers()) == []


def test_the_program_gets_the_yaml_and_places_of_the_run(job: Stage) -> None:
    job.finish()
    (told,) = job.scene.run.root.rglob("settings.txt")
    words = told.read_text().splitlines()
    assert "--deepspeed_zpg=1" in words and "--keep_last_n_checkpoints=-1" in words and "--save_freq=-1" in words
    assert words[words.index("--num_learners_per_node") + 1] == "2"
    assert f"--checkpoint_state_dir={told.parent / 'state'}" in words


def test_a_crash_goes_on_from_its_last_checkpoint_and_repeated_steps_count_once(job: Stage) -> None:
    job.setting.plan(crash_before=6)
    master = job.finish()
    (failed, ended) = job.scene.attempts()
    assert failed == ("failed", ExitCode.GPU, "GPU") and ended == ("succeeded", 0, "")
    assert "2 steps are repeated" in master.text() and "\x1b[2J" not in master.text()
    assert "Resuming training from step 4" in logs(job) and job.steps() == list(range(1, 9))
    assert list(job.scene.run.root.rglob("state/global_step*")) == []  # nothing is left that no checkpoint took


def test_a_stop_waits_for_the_next_checkpoint_and_a_resume_goes_on_from_it(job: Stage) -> None:
    job.setting.plan(step_s=0.4)
    master = job.start()
    master.wait_for(lambda: len(job.steps()) >= 4)
    master.signal(signal.SIGINT)
    assert master.end() == 0
    assert "stopping after its next checkpoint, within 1 h 00 m: the next checkpoint is that of step 6" in master.text()
    assert job.scene.head_step() == 6 and job.scene.attempts() == [("stopped", 0, "")]
    assert alive(job.setting.helpers()) == []
    job.finish()
    assert job.scene.head_step() == 8 and "Resuming training from step 7" in logs(job)


def test_a_stop_that_has_waited_long_enough_says_how_many_steps_are_repeated(job: Stage) -> None:
    job.setting.plan(step_s=0.4)
    master = job.start(open_instruct__stop_within_s=0.1)
    master.wait_for(lambda: len(job.steps()) >= 4)
    master.signal(signal.SIGINT)
    assert master.end() == 0
    assert job.scene.head_step() == 3
    assert "no checkpoint came within 0.1 s of the stop" in job.scene.events("warning")[-1]["text"]
    assert "steps beyond the head will be trained again, with new rollouts" in master.text()


def test_a_second_request_ends_it_at_once_with_all_that_it_started(job: Stage) -> None:
    job.setting.plan(step_s=1)
    master = job.start()
    master.wait_for(lambda: job.steps())
    master.signal(signal.SIGINT)
    master.wait_for_line("stopping after its next checkpoint")
    assert job.scene.ask("stop", "--now").returncode == 0
    assert master.end() == ExitCode.ABORTED
    assert job.scene.head_step() == 0 and alive(job.setting.helpers()) == [] and job.scene.processes() == []


def test_nothing_of_the_job_outlives_a_killed_master(job: Stage) -> None:
    job.setting.plan(step_s=1)
    master = job.start()
    master.wait_for(lambda: job.steps())
    master.kill()
    job.finish()  # the next master ends what was left, then goes on
    assert job.steps() == list(range(1, 9)) and alive(job.setting.helpers()) == []


def test_a_request_for_a_checkpoint_is_answered_with_when_the_next_is_due(job: Stage) -> None:
    job.setting.plan(step_s=0.5)
    master = job.start()
    master.wait_for(lambda: len(job.steps()) >= 4)
    asked = job.scene.ask("checkpoint")
    assert asked.returncode == 1
    assert "this worker saves by itself: the next checkpoint is that of step 6, in " in asked.stdout
    assert "about" in asked.stdout and "the head is still step 3" in asked.stdout
    master.kill()


def test_a_checkpoint_that_lacks_a_file_is_passed_over(job: Stage) -> None:
    job.setting.plan(torn=3)
    master = job.finish()
    assert "global_step6 of step 3 has no optim_states.pt of 1 of 2 GPUs: it is no checkpoint" in master.text()
    assert not list(job.scene.run.checkpoints.glob("c0001-s000003-*"))
    assert job.scene.head_step() == 8


def test_a_program_that_does_not_end_after_its_model_loses_nothing(job: Stage) -> None:
    job.setting.plan(hang_at_end=True)
    job.finish(timeouts__checkpoint_s=0.5)
    assert job.scene.head_step() == 8 and alive(job.setting.helpers()) == []


def test_a_step_that_hangs_is_ended_by_its_deadline(job: Stage) -> None:
    job.setting.plan(hang_before=5)
    job.finish(timeouts__step_min_s=1.5, timeouts__step_factor=2)
    assert job.scene.attempts()[0][2].startswith("hung:") and job.scene.head_step() == 8


def test_the_program_that_goes_on_from_elsewhere_is_refused(job: Stage) -> None:
    job.setting.plan(crash_before=5)
    source = job.setting.source / "open_instruct" / "grpo_fast.py"
    text = source.read_text().replace("done = resumed_from(state)", "done = 0")
    source.write_text(text)
    git(job.setting.source, "commit", "-qam", "forgets")
    job.setting.commit = git(job.setting.source, "rev-parse", "HEAD").strip()
    master = job.finish(ExitCode.INTERNAL, retry__max_same_failure=2)
    assert "open-instruct did step 1, and the head is step 3" in master.text()


def test_another_commit_is_refused_before_anything_is_written(job: Stage) -> None:
    other = "0" * 40
    master = job.finish(ExitCode.INPUT, open_instruct__commit=other)
    text = master.text()
    assert f"is at {job.setting.commit}, and the run is pinned to {other}" in text
    assert f"git -C {job.setting.source} fetch origin {other}" in text and "Traceback" not in text
    assert not job.scene.run.root.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"open_instruct__python": "/nowhere/python"}, "/nowhere/python is no interpreter (open_instruct.python)"),
        ({"open_instruct__python": ""}, ".venv/bin/python is no interpreter"),
        ({"open_instruct__source": ""}, "open_instruct.source names no checkout"),
        ({"open_instruct__source": "/nowhere"}, "/nowhere is no checkout"),
        ({"open_instruct__guide": ""}, "open_instruct.guide names no YAML"),
        ({"open_instruct__guide": "/nowhere.yaml"}, "/nowhere.yaml cannot be read"),
        ({"run__checkpoint_every": 2}, "checkpoint_state_freq is 3, and run.checkpoint_every is 2"),
        ({"run__until": "mean>=0.5"}, "this worker has none"),
    ],
)
def test_what_is_not_there_is_told_with_the_next_command(job: Stage, changes: dict[str, str], said: str) -> None:
    text = job.finish(ExitCode.INPUT, **changes).text()
    assert said in text and "next:" in text and "Traceback" not in text
    assert not job.scene.run.root.exists()


def test_a_checkout_that_was_changed_is_not_the_pinned_commit(job: Stage) -> None:
    program = job.setting.source / "open_instruct" / "grpo_fast.py"
    program.write_text(program.read_text() + "# changed\n")
    text = job.finish(ExitCode.INPUT).text()
    assert "has 1 changed files" in text and f"git -C {job.setting.source} stash" in text


def test_shards_of_another_number_of_gpus_are_refused(job: Stage) -> None:
    job.setting.plan(crash_before=5)
    master = job.start(retry__backoff_s=30, retry__backoff_max_s=30)
    master.wait_for_line("failed: GPU")
    master.kill()
    settings = job.setting.guide.read_text().replace("num_learners_per_node: [2]", "num_learners_per_node: [1]")
    job.setting.guide.write_text(settings)
    text = job.finish(ExitCode.INPUT).text()
    assert "the head holds shards of 2 GPUs that train, and the YAML now has 1" in text
    assert json.loads((checkpoint(job.scene.run, 3) / "open_instruct.json").read_text())["learners"] == 2


def test_the_model_of_the_last_step_is_exported_and_shards_are_not(job: Stage, tmp_path: Path) -> None:
    job.finish()
    out = tmp_path / "model"
    assert job.scene.ask("export", "--merged", "--out", str(out)).returncode == 0
    assert (out / "model.safetensors").read_text() == "weights" and not (out / ".checkpoint_complete").exists()
    shards = job.scene.ask("export", "--merged", "--out", str(tmp_path / "x"), "--checkpoint", "3")
    assert shards.returncode == ExitCode.INPUT and "holds shards alone" in shards.stderr
    adapter = job.scene.ask("export", "--adapter", "--out", str(tmp_path / "y"))
    assert adapter.returncode == ExitCode.INPUT and "there is no adapter" in adapter.stderr
