"""Run directories with unusual names: letters that mean something in a URI, links, and the longest path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.run_directory import behind_link
from state.layout import RunDir
from state.lock import RunLock
from state.opening import LONGEST_ROOT
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants
from tests.faults.test_bad_input import told


@pytest.mark.parametrize(
    "name", ["50%41", "what?mode=rw", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("a#b", "file:x"))]
)
def test_letters_that_mean_something_in_a_uri_are_letters_of_a_path(name: str, tmp_path: Path) -> None:
    with scene(tmp_path / name) as run:
        run.name = name
        run.finish()
        run.finish()
        for command in ("status", "report", "recover"):
            done = run.ask(command)
            assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in run.run.root.parent.iterdir()) == [name]


def test_linked_run_directory_is_used_and_its_lock_is_that_of_the_real_one(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        real = tmp_path / "disk" / "big"
        real.mkdir(parents=True)
        run.run.root.parent.mkdir(parents=True)
        run.run.root.symlink_to(real)
        assert "--run fake" in run.finish().out.read_text(), "commands name the run as the person did"
        assert (real / "state.db").is_file()
        assert run.ask("status").returncode == 0
        check_invariants(run, clean.ending)
        lock = RunLock.acquire(RunDir(real))
        told(run.finish(code=69), "is held")
        lock.release()


def test_a_link_that_is_turned_elsewhere_later_does_not_move_the_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    run = behind_link(RunDir(link))
    link.unlink()
    link.symlink_to(tmp_path / "two")
    assert run.store.parent == tmp_path / "one" and run.name == "link" and run.folder == tmp_path


def deep(root: Path, length: int) -> tuple[Path, str]:
    """(folder of runs, name) such that the run directory's path has `length` bytes."""
    rest = length - len(os.fsencode(root)) - len("/runs/") - 1
    folder = root
    while rest > 200:
        folder, rest = folder / ("d" * 99), rest - 100
    return folder, "n" * rest


def test_longest_path_that_sqlite_opens_runs_and_one_byte_more_is_refused_with_the_numbers(
    clean: Clean, tmp_path: Path
) -> None:
    root, name = deep(tmp_path, LONGEST_ROOT + 1)
    with scene(root) as run:
        run.name = name
        assert len(os.fsencode(run.run.root)) == LONGEST_ROOT
        run.finish()
        check_invariants(run, clean.ending)
        run.name = name + "n"
        told(run.finish(code=66), f"has {LONGEST_ROOT + 1} bytes; SQLite allows {LONGEST_ROOT}")
        assert not Scene(root, {}, [], run.name).run.root.exists()
        run.name = name
