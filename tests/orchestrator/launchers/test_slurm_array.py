"""The words of an array of shards: what Slurm is asked for, and what it answers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.launchers.array_script import array_options, array_script
from orchestrator.launchers.batch import Unanswered
from orchestrator.launchers.job_end import Seen
from orchestrator.launchers.slurm_array import seen_in_array
from profiles.launch import Launch
from profiles.schema import Profile, Run
from state.evaluation_array import ArrayDir, arrays_in, next_array
from tests.orchestrator.launchers import jobs_in_bash as bash

PROFILE = Profile(name="t", run=Run(device="cuda", gpus=4), launch=Launch(partition="gpu", exclude=("n7",), requeues=2))


@pytest.fixture
def array(tmp_path: Path) -> ArrayDir:
    directory = next_array(tmp_path / "a folder")
    for number in (1, 10, 2):
        directory.shard(number).path.mkdir(parents=True)
    return directory


def test_only_the_named_shards_are_asked_for_side_by_side_and_with_one_gpu_each(array: ArrayDir) -> None:
    options = array_options(PROFILE, "lh-x", array, at_once=2)
    assert "--array=1,2,10%2" in options
    assert "--gpus-per-node=1" in options and "--nodes=1" in options
    assert "--partition=gpu" in options and "--exclude=n7" in options and "--requeue" in options
    assert not any(option.startswith("--dependency") for option in options), "tasks of one name would wait in turn"
    assert "--array=1,2,10" in array_options(PROFILE, "lh-x", array, at_once=0)


def test_the_script_is_bash_and_gives_each_task_its_own_directory_and_token(array: ArrayDir) -> None:
    text = array_script(PROFILE, "lh-x", ["/bin/echo", "it's"], {"A": "b c", "PATH": "/bin"}, array, "/")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert f"directory='{array.path}'/shard-$SLURM_ARRAY_TASK_ID" in text
    assert "LONGHAUL_TOKEN=lh-x-$SLURM_ARRAY_TASK_ID" in text


def test_setup_changes_what_a_task_gets_and_not_whose_shard_it_has(array: ArrayDir, tmp_path: Path) -> None:
    profile = Profile(name="t", launch=Launch(setup=(bash.CHANGED, "export LONGHAUL_MAILBOX=other")))
    shown = ("/bin/bash", "-c", 'echo "$CUDA_HOME $LONGHAUL_TOKEN $LONGHAUL_MAILBOX"')
    text = array_script(profile, "lh-x", shown, bash.environment(tmp_path), array, "/")
    assert bash.ran(text, tmp_path, {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "12"}).stdout == (
        f"/opt/cuda lh-x-2 {array.shard(2).path}\n"
    )


def test_a_task_puts_itself_back_so_often_and_slurm_s_own_restarts_do_not_count(
    array: ArrayDir, tmp_path: Path
) -> None:
    variables = bash.environment(tmp_path)
    bash.program(tmp_path, "sleep", "#!/bin/sh\n")
    bash.program(tmp_path, "scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    text = array_script(PROFILE, "lh-x", ("/bin/bash", "-c", "kill -USR1 $PPID; /bin/sleep 0.5"), variables, array, "/")
    for restart in (5, 8, 9):
        task = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "12", "SLURM_RESTART_COUNT": str(restart)}
        bash.ran(text, tmp_path, task)
    assert (tmp_path / "asked").read_text() == "requeue 12_2\n" * 2


def test_the_rows_of_an_array_are_read_by_their_numbers() -> None:
    rows = "12_0|RUNNING|None|n1\n12_3|PENDING|JobArrayTaskLimit|\n12_10|FAILED|NonZeroExitCode|n2\n"
    assert seen_in_array(rows) == {
        0: Seen("RUNNING", reason="None", nodes=("n1",)),
        3: Seen("PENDING", reason="JobArrayTaskLimit"),
        10: Seen("FAILED", reason="NonZeroExitCode", nodes=("n2",)),
    }
    assert seen_in_array("") == {}


@pytest.mark.parametrize("rows", ["12_0|RUNNING||n1\n13_0|COMPLETED||n2\n", "12_0|COMPLETED||n2\n13_0|RUNNING||n1\n"])
def test_of_an_array_that_slurm_took_twice_the_living_copy_counts(rows: str) -> None:
    assert seen_in_array(rows) == {0: Seen("RUNNING", nodes=("n1",))}


@pytest.mark.parametrize("rows", ["Segmentation | fault ???", "12_[0-3]|PENDING||", "12_1|RUNNING"])
def test_rubbish_says_nothing_about_any_task(rows: str) -> None:
    with pytest.raises(Unanswered, match="squeue says"):
        seen_in_array(rows)


def test_arrays_and_shards_are_listed_by_their_numbers_and_other_files_are_not(array: ArrayDir) -> None:
    folder = array.path.parent
    for name in ("array-10", "array-2", "array-2.bad", "model"):
        (folder / name).mkdir()
    assert [one.number for one in arrays_in(folder)] == [1, 2, 10]
    assert next_array(folder).number == 11
    assert [one.number for one in array.shards()] == [1, 2, 10]
    assert array.shard(2).array == array
