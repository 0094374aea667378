"""Rows D6 to D8: the store is lost, torn, changed, or older than its run; files beside it restore everything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.cycle_files import old_cycles
from state import row_digests
from state.reader import Reader
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import Ending, check_invariants, ending
from tests.faults.test_bad_input import told

KILLED = -signal.SIGKILL
CYCLES = {"run__steps_per_cycle": 2, "run__checkpoint_every": 1}


def remove(run: Scene) -> None:
    for path in run.run.root.glob("state.db*"):
        path.unlink()


def remove_with_back_ups(run: Scene) -> None:
    remove(run)
    shutil.rmtree(run.run.backups)


def cut_short(run: Scene) -> None:
    with closing(sqlite3.connect(run.run.store)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(run.run.store, run.run.store.stat().st_size // 2)


def overwrite(run: Scene) -> None:
    remove(run)
    run.run.store.write_bytes(os.urandom(40_000))


def change_the_profile(run: Scene) -> None:
    with closing(sqlite3.connect(run.run.store)) as db, db:
        db.execute("UPDATE runs SET profile=replace(profile, '\"seed\":0', '\"seed\":1')")


def change_the_profile_and_its_digest(run: Scene) -> None:
    """As somebody does who knows of row digests: the profile's own sha256 is left."""
    with closing(sqlite3.connect(run.run.store)) as db, db:
        row_digests.keep(db)
        db.execute("UPDATE runs SET profile=replace(profile, '\"seed\":', '\"seed\":1')")
        assert row_digests.altered(db) == ""


def flip_bits_of_a_value(run: Scene) -> None:
    """What a disk does to a value inside a page: SQLite itself sees nothing."""
    with closing(sqlite3.connect(run.run.store)) as db:
        (path,) = db.execute("SELECT path FROM checkpoints ORDER BY step DESC LIMIT 1").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file, name = run.run.store.read_bytes(), path.encode()
    assert name in file
    run.run.store.write_bytes(file.replace(name, name[:-1] + b"?"))
    with closing(sqlite3.connect(run.run.store)) as db:
        db.execute("REINDEX")
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def stored_answers(run: Scene) -> list[tuple[object, ...]]:
    """Who answered which problem right, as the stagnation rule reads it."""
    with closing(sqlite3.connect(run.run.store)) as db:
        return db.execute("SELECT checkpoint_id, suite, task, greedy, sampled FROM answers").fetchall()


def mend(run: Scene) -> str:
    done = run.ask("recover")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("crash", "damage"),
    [
        *(("commit.after:3", damage) for damage in (remove, cut_short, overwrite, change_the_profile)),
        ("commit.after:3", flip_bits_of_a_value),
        ("commit.after:3", change_the_profile_and_its_digest),
        ("commit.after:3", remove_with_back_ups),
        ("attempt.before_close:4", remove),
        *(
            pytest.param("attempt.before_close:4", damage, marks=pytest.mark.exhaustive)
            for damage in (cut_short, overwrite, change_the_profile)
        ),
    ],
)
def test_D6_D7_store_lost_torn_or_changed_is_made_again_and_the_run_ends_as_if_nothing_had_happened(
    damage: Callable[[Scene], None], crash: str, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        run.finish(crash, code=KILLED)
        run.wait_until_nobody_is_left()
        answers = stored_answers(run)
        damage(run)
        told(run.finish(code=74), "python -m orchestrator recover")
        assert "were adopted from their files" in mend(run)
        assert "is whole; nothing was changed" in mend(run)
        assert answers and set(stored_answers(run)) >= set(answers)
        run.finish()
        check_invariants(run, clean.ending)
        assert damage in (remove, remove_with_back_ups) or list(run.run.quarantine.glob("state.db.1"))


def test_D6_killed_while_the_store_is_made_again_it_is_made_all_the_same(clean: Clean, tmp_path: Path) -> None:
    for nth in (1, 2, 3):
        with scene(tmp_path / f"at-{nth}") as run:
            run.finish("attempt.before_close:4", code=KILLED)
            run.wait_until_nobody_is_left()
            remove_with_back_ups(run)
            command = [*run.command()[:3], "recover", "--run", run.name, "--runs", str(run.root / "runs")]
            assert run.launch(command, f"recover.told:{nth}").end() == KILLED
            run.finish()
            check_invariants(run, clean.ending)


@pytest.mark.parametrize("damage", [remove, remove_with_back_ups])
def test_D6_typed_again_recover_finishes_what_it_was_killed_in(damage: Callable[[Scene], None], tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("attempt.before_close:4", code=KILLED)
        run.wait_until_nobody_is_left()
        last = run.head_step()
        damage(run)
        command = [*run.command()[:3], "recover", "--run", run.name, "--runs", str(run.root / "runs")]
        assert run.launch(command, "recover.strays_killed:1").end() == KILLED
        assert run.head_step() < last
        assert "is older than its checkpoints" in mend(run)
        assert run.head_step() >= last
        assert "is whole; nothing was changed" in mend(run)


def test_recover_prints_what_it_found_and_did_as_one_object(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        whole = json.loads(run.ask("recover", "--json").stdout)
        assert whole == {"run": "fake", "found": "the store of run 'fake' is whole; nothing was changed", "done": []}
        remove(run)
        rebuilt = json.loads(run.ask("recover", "--json").stdout)
        assert rebuilt["run"] == "fake" and any("back-up" in line for line in rebuilt["done"])


def test_D6_without_one_whole_spec_or_checkpoint_nothing_is_touched(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        remove(run)
        specs = list(run.run.cycles.glob("*/*/spec.json"))
        assert list(run.run.backups.glob("*.db")), "from which nothing would lead to the last checkpoint"
        kept = {path: path.read_bytes() for path in specs}
        for path in specs:
            path.write_bytes(kept[path][:-9])
        before = sorted(path.name for path in run.run.root.rglob("*"))
        assert "no attempt in" in run.ask("recover").stderr
        for path in specs:
            path.write_bytes(kept[path])
        for path in run.run.checkpoints.glob("*/weights.json"):
            path.write_bytes(b"[0.5]")
        done = run.ask("recover")
        assert done.returncode == 74 and "none of the 3 checkpoints of this run can be used" in done.stderr
        assert sorted(path.name for path in run.run.root.rglob("*")) == before


# --- a store that is older than its run ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ending]:
    """Five cycles of two steps."""
    with scene(tmp_path_factory.mktemp("unbroken") / "run", **CYCLES) as run:
        run.finish(run__max_cycles=5)
        yield ending(run)


def with_an_older_store(run: Scene, crash: str) -> dict[Path, bytes]:
    """Killed there, then the store as it was after cycle 1 put back. Returns every spec and result."""
    run.finish(run__max_cycles=1)
    shutil.copyfile(run.run.store, run.root / "older.db")
    run.finish(crash, code=KILLED, run__max_cycles=4)
    run.wait_until_nobody_is_left()
    remove(run)
    shutil.copyfile(run.root / "older.db", run.run.store)
    return {path: path.read_bytes() for path in run.run.cycles.glob("*/*/*.json")}


@pytest.mark.parametrize("crash", ["cycle.committed:3", "commit.before:5", "attempt.before_close:5"])
def test_D8_older_store_adopts_the_newest_whole_checkpoint_and_ends_as_if_it_had_not_been_old(
    crash: str, unbroken: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **CYCLES) as run:
        files = with_an_older_store(run, crash)
        newest = max(int(path.name[7:13]) for path in run.run.checkpoints.glob("c*-s*"))
        said = run.finish(run__max_cycles=5).out.read_text()
        assert "were adopted from their files" in said and f"resumes from step {newest}" in said
        assert "DAMAGED" not in said and not list(run.run.quarantine.iterdir())
        assert {path: path.read_bytes() for path in files} == files, "no directory was used twice"
        check_invariants(run, unbroken)


def test_D8_older_store_with_the_newest_checkpoint_damaged_adopts_the_one_before(
    unbroken: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", retention__keep_ancestors=3, **CYCLES) as run:
        with_an_older_store(run, "cycle.committed:3")
        *_, before, newest = sorted(run.run.checkpoints.iterdir())
        (newest / "weights.json").write_bytes(b"[0.5]")
        said = run.finish(run__max_cycles=5, run__steps_per_cycle=2).out.read_text()
        assert f"up to checkpoints/{before.name}" in said
        assert f"DAMAGED, moved to quarantine: {newest.name}" in said
        check_invariants(run, unbroken)


def test_D8_older_store_without_the_files_of_a_cycle_says_so_and_goes_on_from_the_newest(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **CYCLES) as run:
        with_an_older_store(run, "cycle.committed:3")
        newest = max(int(path.name[7:13]) for path in run.run.checkpoints.iterdir())
        shutil.rmtree(run.run.cycle(2))
        said = run.finish(run__max_cycles=5).out.read_text()
        assert "no files are left of cycles 2: skipped" in said and f"resumes from step {newest}" in said
        assert run.head_step() == 10


def test_D8_checkpoint_of_another_continuation_is_set_aside_whole_and_never_mixed_in(
    unbroken: Ending, tmp_path: Path
) -> None:
    with scene(tmp_path / "run", **CYCLES) as run, scene(tmp_path / "other", **CYCLES) as other:
        run.finish(run__max_cycles=1)
        shutil.copytree(run.run.root, other.run.root)
        other.finish(run__max_cycles=4)
        run.finish(run__max_cycles=2)
        foreign = other.head_dir()
        shutil.copytree(foreign, run.run.checkpoints / foreign.name)
        said = run.finish(run__max_cycles=5).out.read_text()
        assert f"valid, but moved to quarantine: {foreign.name}" in said
        assert (run.run.quarantine / foreign.name).is_dir()
        check_invariants(run, unbroken)


def test_an_attempt_s_directory_is_never_used_twice(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("attempt.started:2", code=KILLED)
        run.wait_until_nobody_is_left()
        left = run.run.attempt(1, 7).path
        left.mkdir(parents=True)
        (left / "spec.json").write_text("{}")
        run.finish()
        assert (left / "spec.json").read_text() == "{}"
        numbers = [number for (number,) in run.rows("SELECT attempt FROM attempts WHERE role='train' AND cycle=1")]
        assert numbers == [8]
        spec = json.loads(run.run.attempt(1, 8).spec.read_bytes())
        assert spec["token"] == run.one("SELECT token FROM attempts WHERE cycle=1 AND attempt=8 AND role='train'")
        check_invariants(run, clean.ending)


BACK_UPS_MAY_TAKE = """
import sys
from orchestrator import loop
loop.BACKUP_SHARE = {share}
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
"""Of the time. A disk that is busy makes back-ups rarer; so it does not decide what a test sees."""
EACH_CYCLE = "float('inf')"


def finish_with_back_ups(run: Scene, share: str) -> None:
    command = [sys.executable, "-c", BACK_UPS_MAY_TAKE.format(share=share), *run.command("--plain")[3:]]
    master = run.launch(command)
    assert master.end() == 0, master.text()


def test_where_back_ups_would_take_too_much_of_the_time_cycles_have_none(tmp_path: Path) -> None:
    with scene(tmp_path / "run", run__max_cycles=4, run__steps_per_cycle=2) as run:
        finish_with_back_ups(run, "1e-9")
        assert [path.name for path in run.run.backups.glob("*.db")] == ["cycle-000000.db"]


def test_back_ups_of_the_last_cycles_are_whole_and_two_are_kept(tmp_path: Path) -> None:
    with scene(tmp_path / "run", run__max_cycles=6, run__steps_per_cycle=2) as run:
        finish_with_back_ups(run, EACH_CYCLE)
        kept = sorted(run.run.backups.glob("*.db"))
        assert len(kept) == 2
        for path in kept:
            with closing(sqlite3.connect(path)) as db:
                assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                last = db.execute("SELECT max(cycle) FROM cycles WHERE state='committed'").fetchone()
            assert last == (int(path.stem.removeprefix("cycle-")),)


OLD_ONES = {"run__steps_per_cycle": 2, "run__checkpoint_every": 2, "run__max_cycles": 7, "fake__step_s": 0.2}


def fallen_back(run: Scene) -> int:
    """A run of seven cycles that fell back to the first and was stopped when it had done more. Returns its head."""
    run.finish(retention__keep_ancestors=9)
    for directory in run.run.checkpoints.glob("c000[2-9]-*"):
        (directory / "weights.json").write_bytes(b"rotten")
    master = run.start(retention__keep_ancestors=9)
    master.wait_for(lambda: 6 <= run.head_step() < 10)
    assert run.ask("stop").returncode == 0
    assert master.end() == 0
    return run.head_step()


def test_a_store_that_is_lost_after_a_fall_back_comes_back_with_what_was_trained_since(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OLD_ONES) as run:
        head = fallen_back(run)
        remove(run)
        assert "began from the back-up" in mend(run)
        assert run.head_step() == head


def test_steps_that_a_fall_back_undid_are_not_the_run_s(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **OLD_ONES) as run:
        head = fallen_back(run)
        with closing(Reader.open(run.run)) as reader:
            assert [step.step for step in reader.steps(100)] == list(range(1, head + 1))


# --- files of old cycles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backed_up", "keep", "expected"),
    [
        pytest.param([9, 8], 3, [1, 2, 3, 4, 5], id="what all back-ups hold, but for the newest"),
        pytest.param([9], 3, [], id="none before there are two back-ups"),
        pytest.param([9, 8], 0, [], id="none if all are to stay"),
        pytest.param([9, 8], 50, [], id="none in a young run"),
    ],
)
def test_which_cycles_lose_their_files(backed_up: list[int], keep: int, expected: list[int]) -> None:
    assert old_cycles(range(1, 10), backed_up, keep) == expected


def test_a_store_that_is_lost_comes_back_whole_although_files_of_old_cycles_are_gone(tmp_path: Path) -> None:
    with scene(tmp_path / "run", **CYCLES, run__max_cycles=12, retention__keep_cycles=2) as run:
        finish_with_back_ups(run, EACH_CYCLE)
        there = {path.name for path in run.run.cycles.iterdir()}
        assert "0012" in there and "0001" not in there
        before = ending(run)
        remove(run)
        assert "began from the back-up" in mend(run)
        run.finish()
        check_invariants(run, before)
