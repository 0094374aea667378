"""`cp -r` of a run: two directories with the same run id, neither of which may touch the other's processes."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.copies import Place, is_copy
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants

LINE = "this directory is a copy of a run that was last trained from "
AT = Place("/a/run", 1, 10)


def copy_of(run: Scene, name: str) -> Scene:
    """As `cp -r` makes it, in the same `runs`: without files that the run deletes meanwhile."""
    other = Scene(run.root, run.knobs, name=name)
    left_out = shutil.ignore_patterns("ballast", "*.sock", "*.tmp")
    shutil.copytree(run.run.root, other.run.root, ignore=left_out, copy_function=copied_if_there)
    return other


def copied_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


@pytest.mark.slow
def test_resuming_a_copy_leaves_the_process_of_the_original_alone_and_says_so(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        first = run.start("worker.before_update:4:sleep")
        first.wait_for(lambda: run.head_step() == 2)
        worker = first.worker_pid()
        copy = copy_of(run, "copy")
        second = copy.finish()
        assert LINE + str(run.run.root) in second.out.read_text()
        assert "processes of an earlier master" not in second.out.read_text()
        assert worker in [process.pid for process in run.processes()], "it sleeps in step 4, as before"
        check_invariants(copy, clean.ending)
        first.kill()
        run.wait_until_nobody_is_left()
        third = run.finish()
        assert LINE not in third.out.read_text()
        check_invariants(run, clean.ending)


def test_status_of_a_copy_does_not_take_the_master_of_the_original_for_its_own(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        master = run.start("worker.before_update:4:sleep")
        master.wait_for(lambda: run.head_step() == 2)
        copy = copy_of(run, "copy")
        assert json.loads(run.ask("status", "--json").stdout)["master_pid"] == master.pid
        assert json.loads(copy.ask("status", "--json").stdout)["master_pid"] is None


@pytest.mark.slow
def test_a_run_that_is_moved_is_no_copy_and_a_stray_of_it_is_ended(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="zombie:3", fake__step_s=0.2) as run:
        master = run.start()
        master.wait_for(run.run.rollout_file(1, 4).exists)  # the stray lies in a session of its own, without a lifeline
        master.kill()
        moved = Scene(run.root, run.knobs, name="moved")
        run.run.root.rename(moved.run.root)
        said = moved.finish().out.read_text()
        assert "processes of an earlier master were still there" in said
        assert LINE not in said
        check_invariants(moved)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(AT, False, id="the same place"),
        pytest.param(Place("/b/run", 1, 10), False, id="moved within the file system"),
        pytest.param(Place("/a/run", 2, 10), False, id="mounted again, its device numbered anew"),
        pytest.param(Place("/a/run", 1, 11), True, id="restored in its own place"),
        pytest.param(Place("/b/run", 1, 11), True, id="copied beside it"),
        pytest.param(Place("/b/run", 2, 10), True, id="copied to another file system, by chance with its inode"),
    ],
)
def test_what_counts_as_a_copy(now: Place, expected: bool) -> None:
    assert is_copy(AT, now) is expected
