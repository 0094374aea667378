"""Power fails while a command changes a run, or while a start mends one: then the command is typed again."""

from __future__ import annotations

import io
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from orchestrator.cli import main
from state.checkpoint import verify
from state.layout import RunDir
from state.tables import SEALED
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, faults, scene
from tests.faults.invariants import check_invariants
from tests.faults.test_backup import as_another, made
from tests.faults.test_large_checkpoints import ALL_ARE_LARGE, flip_a_byte
from tests.faults.test_replay import Recording, cuts, finish_here, record, resumed_from
from tests.faults.test_scrub import stopped_at

HALF = 4
"""Step at which runs are stopped before the command."""


def nothing(run: Scene) -> None:
    pass


def stopped(run: Scene) -> None:
    stopped_at(run, HALF)


def with_a_rotten_head(run: Scene) -> None:
    stopped(run)
    flip_a_byte(run.head_dir())


def of_the_last_version(run: Scene) -> None:
    """As a program before digests of rows left it."""
    stopped(run)
    with closing(sqlite3.connect(run.run.store)) as db, db:
        for table in SEALED:
            db.execute(f"ALTER TABLE {table} DROP COLUMN row_digest")
        db.execute("DROP INDEX steps_series")
        db.execute("DROP TABLE requests")
        db.execute("ALTER TABLE validations DROP COLUMN asked")
        db.execute("ALTER TABLE attempts DROP COLUMN forgiven")
        db.execute("PRAGMA user_version=4")


def without_a_store(run: Scene) -> None:
    stopped(run)
    for path in (run.run.store, *run.run.store_companions):
        path.unlink(missing_ok=True)


def with_a_back_up(run: Scene) -> None:
    stopped(run)
    assert run.ask("backup", str(run.root / "kept")).returncode == 0
    shutil.rmtree(run.run.root)


def run_it(run: Scene) -> list[str]:
    return run.command("--plain")


def as_if_large(run: Scene) -> list[str]:
    return [sys.executable, "-c", ALL_ARE_LARGE, *run.command("--plain")[3:]]


def asking(*words: str) -> Callable[[Scene], list[str]]:
    def command(run: Scene) -> list[str]:
        named = [word.format(root=run.root) for word in words]
        if words[0] == "restore":
            named.insert(1, str(made(run.root / "kept")[0]))
        return [sys.executable, "-m", "orchestrator", *named, "--run", run.name, "--runs", str(run.root / "runs")]

    return command


def can_be_restored(run: Scene) -> None:
    other = as_another(run, "other")
    assert other.launch_and_end(asking("restore")(other), "", code=0).err.read_text() == ""
    other.finish()
    check_invariants(other)


def is_whole(run: Scene) -> bool:
    """Whether the store is there and its head, at least of the step before the command, verifies."""
    return run.run.store.exists() and run.head_step() >= HALF and bool(verify(run.head_dir(), deep=True))


def is_pruned(run: Scene) -> bool:
    return is_whole(run) and not run.rows("SELECT 1 FROM checkpoints WHERE state='deleting'")


def has_back_up(run: Scene) -> bool:
    return len(made(run.root / "kept")) == 1


@dataclass(frozen=True)
class Story:
    """again: whether the command is typed again after the cut, before the run goes on. afterwards: what else to try."""

    prepare: Callable[[Scene], None]
    command: Callable[[Scene], list[str]]
    again: bool = False
    afterwards: Callable[[Scene], None] = nothing
    did: Callable[[Scene], bool] = is_whole
    """Whether what the command reports at its end is there."""


STORIES = {
    "walk-back": Story(with_a_rotten_head, run_it),
    "migration": Story(of_the_last_version, run_it),
    "large checkpoints": Story(nothing, as_if_large),
    "recover": Story(without_a_store, asking("recover"), again=True),
    "backup": Story(stopped, asking("backup", "{root}/kept"), again=True, afterwards=can_be_restored, did=has_back_up),
    "restore": Story(with_a_back_up, asking("restore"), again=True),
    "prune": Story(stopped, asking("prune", "--keep", "1"), again=True, did=is_pruned),
}
PARTS, FEW = 8, 60
"""Each call is tried by one of PARTS in all tests; by those of a submission, one of FEW."""


def told_again(run: Scene, story: Story) -> None:
    """A restore that was complete already has nothing left to do, and says that the name is taken."""
    is_there = "restore" in story.command(run) and RunDir(run.run.root).store.exists()
    master = run.launch(story.command(run))
    code = master.end()
    assert code == (66 if is_there else 0), master.text()
    assert "Traceback" not in master.text()


def recorded_story(name: str, tmp_path: Path) -> tuple[Story, Recording, int]:
    """The story, the calls of its command, and the newest step that was reported before."""
    story, root = STORIES[name], tmp_path / "run"
    with scene(root) as run:
        story.prepare(run)
        least = run.head_step() if "rotten" not in story.prepare.__name__ else 0
        shutil.copytree(root, tmp_path / "there") if root.exists() else (tmp_path / "there").mkdir()
        return story, record(run, tmp_path / "trace", tmp_path / "there", story.command(run)), least


def check_story(name: str, part: int, parts: int, clean: Clean, tmp_path: Path) -> None:
    story, found, least = recorded_story(name, tmp_path)
    for count in list(range(1, len(found.calls) + 1))[part::parts]:
        for draw in (None, Random(count)):
            check_cut(story, found, count, draw, clean, least)


def check_cut(story: Story, found: Recording, count: int, draw: Random | None, clean: Clean, least: int) -> None:
    disk, reported = found.at(count)
    shutil.rmtree(found.root, ignore_errors=True)
    with scene(found.root) as run:
        disk.after_cut(found.root, draw)
        where = f"after call {count} of {len(found.calls)}: {found.calls[count - 1].name}"
        faults.append(where)
        if story.again:
            told_again(run, story)
        master = run.finish()
        assert "Traceback" not in master.text(), f"{where}\n{master.text()}"
        assert resumed_from(master.text()) >= max(least, reported), f"{where}\n{master.text()}"
        check_invariants(run, clean.ending)
        story.afterwards(run)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STORIES)
def test_power_fails_in(name: str, clean: Clean, tmp_path: Path) -> None:
    check_story(name, FEW // 2, FEW, clean, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name, story in STORIES.items() if story.again])
def test_what_a_command_reported_is_there_if_power_fails_right_after(name: str, tmp_path: Path) -> None:
    story, found, _ = recorded_story(name, tmp_path)
    disk, _ = found.at(len(found.calls))
    disk.after_cut(found.root, None)
    assert story.did(Scene(found.root))


# --- every call, in this process -------------------------------------------------------------------------------------


def typed_here(words: list[str]) -> tuple[int, str]:
    """Exit code and output of a command; it is typed after `python -m orchestrator`. A traceback is raised."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        return main(words), said.getvalue()


def check_every_call(name: str, part: int, parts: int, clean: Clean, tmp_path: Path) -> None:
    story, found, least = recorded_story(name, tmp_path)
    for number, where, disk, reported in cuts(found):
        for draw in (None, Random(number)) if number % parts == part else ():
            shutil.rmtree(found.root, ignore_errors=True)
            disk.after_cut(found.root, draw)
            run = Scene(found.root)
            if story.again:
                is_there = name == "restore" and RunDir(run.run.root).store.exists()
                code, said = typed_here(story.command(run)[3:])
                assert code == (66 if is_there else 0), f"{where}\n{said}"
            if name == "backup":
                restore = asking("restore")(as_another(run, "other"))[3:]
                assert typed_here(restore)[0] == 0 and Scene(found.root, name="other").head_step() == least, where
                shutil.rmtree(found.root / "runs" / "other")
            place, may = f"{name} {where} {draw is None}", name == "walk-back"
            finish_here(found.root, place, clean, max(least, reported), may_walk_back=may)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", STORIES)
def test_power_fails_at_every_call_of(name: str, part: int, clean: Clean, tmp_path: Path) -> None:
    check_every_call(name, part, PARTS, clean, tmp_path)
