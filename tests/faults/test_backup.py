"""Back-ups of a run, archives, and runs made of them: complete and right, or not there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator import backup
from orchestrator.backup import KEPT, MANIFEST, alone_in, new_half, remove_abandoned, stem_of
from orchestrator.runs import all_runs
from profiles.errors import ExitCode
from state.layout import HALF, LONGEST_NAME_BYTES
from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants, ending
from tests.faults.test_large_checkpoints import flip_a_byte


def made(folder: Path) -> list[Path]:
    """The back-ups that were completed."""
    return sorted(path.parent for path in folder.glob(f"[!.]*/{backup.MANIFEST}"))


def as_another(run: Scene, name: str) -> Scene:
    return Scene(run.root, run.knobs, name=name)


def restored(run: Scene, source: Path, name: str) -> Scene:
    command = [sys.executable, "-m", "orchestrator", "restore", str(source), "--run", name]
    done = subprocess.run([*command, "--runs", str(run.root / "runs")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return as_another(run, name)


def test_a_back_up_made_while_a_run_trains_becomes_a_run_that_ends_the_same(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.3) as run:
        master = run.start()
        master.wait_for(lambda: run.head_step() >= 2)
        worker = master.worker_pid()
        os.kill(worker, signal.SIGSTOP)
        done = run.ask("backup", str(tmp_path / "kept"))
        os.kill(worker, signal.SIGCONT)
        assert done.returncode == 0, done.stderr
        assert master.end() == 0, master.text()
        (one,) = made(tmp_path / "kept")
        other = restored(run, one, "other")
        assert 2 <= other.head_step() < 6
        master = other.finish()
        assert "this directory is a copy of a run" in master.text()
        check_invariants(other, clean.ending)
        assert ending(run) == clean.ending, "the original knows nothing of it"


def test_an_archive_becomes_a_run_that_ends_the_same(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("commit.after:3", code=-signal.SIGKILL)
        run.wait_until_nobody_is_left()
        done = run.ask("archive", str(tmp_path / "night.tar"))
        assert done.returncode == 0, done.stderr
        assert [path.name for path in tmp_path.iterdir() if "night" in path.name] == ["night.tar"]
        other = restored(run, tmp_path / "night.tar", "other")
        other.finish()
        check_invariants(other, clean.ending)


def test_files_of_checkpoints_are_linked_and_those_that_grow_are_copied(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        (one,) = made(tmp_path / "kept")
        links = {str(path.relative_to(one)): path.stat().st_nlink for path in one.rglob("*") if path.is_file()}
        assert {count for name, count in links.items() if name.startswith("checkpoints/")} == {2}
        assert {count for name, count in links.items() if not name.startswith("checkpoints/")} == {1}
        assert run.ask("backup", str(tmp_path / "kept")).returncode == 0
        assert len(made(tmp_path / "kept")) == 2


@pytest.mark.parametrize("nth", [1, 20])
def test_a_back_up_that_is_killed_is_no_back_up_and_the_next_call_completes_it(nth: int, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        command = [sys.executable, "-m", "orchestrator", "backup", str(tmp_path / "kept"), "--run", run.name]
        killing = ["strace", "-f", "-o", "/dev/null", "-e", f"inject=fsync:signal=KILL:when={nth}"]
        subprocess.run([*killing, *command, "--runs", str(run.root / "runs")], capture_output=True, check=False)
        assert made(tmp_path / "kept") == []
        assert run.ask("backup", str(tmp_path / "kept")).returncode == 0
        other = restored(run, made(tmp_path / "kept")[-1], "other")
        assert ending(other) == ending(run)
        assert not list((tmp_path / "kept").glob(".*"))


def killed_restore(run: Scene, source: Path) -> Path:
    """What is left of a restore that was killed in the middle."""
    command = [sys.executable, "-m", "orchestrator", "restore", str(source), "--run", "other"]
    killing = ["strace", "-f", "-o", "/dev/null", "-e", "inject=fsync:signal=KILL:when=20"]
    subprocess.run([*killing, *command, "--runs", str(run.root / "runs")], capture_output=True, check=False)
    (left,) = (run.root / "runs").glob(f"{HALF}*")
    return left


def test_the_next_restore_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        (one,) = made(tmp_path / "kept")
        assert (killed_restore(run, one) / "state.db").exists()
        restored(run, one, "other")
        assert sorted(path.name for path in (run.root / "runs").iterdir()) == ["fake", "other"]


def test_a_restore_leaves_the_folder_of_one_that_is_at_work(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        with new_half(run.root / "runs") as half:
            restored(run, made(tmp_path / "kept")[0], "other")
            assert half.is_dir()


def test_a_restore_leaves_every_unfinished_folder_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / f"{HALF}x").mkdir()
    remove_abandoned(tmp_path)
    assert (tmp_path / f"{HALF}x").is_dir()


def test_a_run_that_is_not_restored_yet_is_no_run(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.run.root.rename(run.root / "runs" / f"{HALF}x")
        assert all_runs(run.root / "runs") == []


def test_a_byte_that_changed_is_found_before_anything_is_restored(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        (one,) = made(tmp_path / "kept")
        flip_a_byte(max(one.glob("checkpoints/c*")))  # of the copy: a new file replaces the link
        done = run.ask("restore", str(one), "--run", "other")
        assert done.returncode == 74 and "are not as they were backed up" in done.stderr
        assert sorted(path.name for path in (run.root / "runs").iterdir()) == ["fake"]


def test_what_cannot_be_backed_up_or_restored_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        inside = run.ask("backup", str(run.run.root / "kept"))
        assert inside.returncode == 66 and "is inside the run" in inside.stderr
        flip_a_byte(run.head_dir())
        rotten = run.ask("backup", str(tmp_path / "kept"))
        assert rotten.returncode == 74 and "cannot be backed up" in rotten.stderr
        assert made(tmp_path / "kept") == []
        (tmp_path / "text").write_text("no archive")
        for source in (tmp_path / "text", tmp_path / "kept", tmp_path / "nothing"):
            assert run.ask("restore", str(source), "--run", "other").returncode == 66


@pytest.mark.parametrize(("command", "place"), [("backup", "/proc/kept"), ("archive", "/proc/night.tar")])
def test_a_place_where_nothing_can_be_made_is_named(command: str, place: str, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        done = run.ask(command, place)
        assert done.returncode == ExitCode.INPUT
        assert done.stderr.splitlines() == [
            f"error: {place} cannot be used: No such file or directory",
            f"kept:  {KEPT}",
            "next:  the same command with another path",
        ]


def test_two_back_ups_never_write_into_one_folder(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        half = tmp_path / "kept" / f"{HALF}fake"
        half.mkdir(parents=True)
        with alone_in(half):
            done = run.ask("backup", str(tmp_path / "kept"))
            assert done.returncode == ExitCode.LOCKED and "another back-up of this run" in done.stderr
        assert run.ask("backup", str(tmp_path / "kept")).returncode == 0


@pytest.mark.parametrize("letter", ["x", "ä"])
def test_a_run_with_the_longest_name_is_backed_up_and_restored_under_it(letter: str, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.name = letter * (LONGEST_NAME_BYTES // len(letter.encode()))
        run.finish()
        assert run.ask("backup", str(tmp_path / "kept")).returncode == 0
        (one,) = made(tmp_path / "kept")
        done = run.ask("restore", str(one), "--runs", str(tmp_path / "again"))
        assert done.returncode == 0 and [path.name for path in (tmp_path / "again").iterdir()] == [run.name]


def test_long_names_that_end_differently_have_back_ups_of_different_names() -> None:
    assert stem_of("x" * 254 + "y") != stem_of("x" * 255)
    assert stem_of("night") == "night"


def test_a_back_up_of_a_run_with_an_impossible_name_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        (one,) = made(tmp_path / "kept")
        said = json.loads((one / MANIFEST).read_bytes()) | {"name": "../escaped"}
        (one / MANIFEST).write_text(json.dumps(said))
        done = run.ask("restore", str(one), "--run", "other")
        assert done.returncode == ExitCode.INPUT and "names no run" in done.stderr


@pytest.mark.parametrize("name", ["../../victim", "/tmp/victim", "cycles/../../../victim"])
def test_a_back_up_that_names_files_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        (one,) = made(tmp_path / "kept")
        said = json.loads((one / MANIFEST).read_bytes())
        said["files"][name] = said["files"]["state.db"]
        (one / MANIFEST).write_text(json.dumps(said))
        done = run.ask("restore", str(one), "--run", "other")
        assert done.returncode == ExitCode.INPUT and "names files outside a run" in done.stderr
        assert sorted(path.name for path in (run.root / "runs").iterdir()) == ["fake"]


def test_what_an_archive_holds_beside_the_run_is_left_out(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("archive", str(tmp_path / "night.tar"))
        (tmp_path / "more").write_text("more")
        with tarfile.open(tmp_path / "night.tar", "a") as archive:
            archive.add(tmp_path / "more", "cycles/0099/more")
        assert run.ask("restore", str(tmp_path / "night.tar"), "--run", "other").returncode == 0
        assert not list((run.root / "runs" / "other").rglob("more"))


def test_a_run_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.ask("backup", str(tmp_path / "kept"))
        done = run.ask("restore", str(made(tmp_path / "kept")[0]))
        assert done.returncode == 66 and "there is a run 'fake'" in done.stderr


def test_prune_says_what_it_would_delete_and_deletes_it(tmp_path: Path) -> None:
    with scene(tmp_path / "run", retention__keep_ancestors=5) as run:
        run.finish()
        before = sorted(path.name for path in run.run.checkpoints.iterdir())
        said = run.ask("prune", "--keep", "1", "--dry-run").stdout
        assert sorted(path.name for path in run.run.checkpoints.iterdir()) == before
        done = run.ask("prune", "--keep", "1").stdout
        gone = set(before) - {path.name for path in run.run.checkpoints.iterdir()}
        assert gone and all(f"would delete checkpoints/{name}" in said for name in gone)
        assert all(f"deleted checkpoints/{name}" in done for name in gone)
        check_invariants(run)


def test_back_ups_archives_and_restores_print_their_facts_as_one_object(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        kept, packed = tmp_path / "kept", tmp_path / "night.tar"
        backed_up = json.loads(run.ask("backup", str(kept), "--json").stdout)
        facts = {"step": 6, "files": backed_up["files"], "bytes": backed_up["bytes"]}
        assert backed_up == facts | {"path": str(kept / "fake-s000006")}
        again = tmp_path / "again"
        assert json.loads(
            run.ask("restore", str(kept / "fake-s000006"), "--runs", str(again), "--json").stdout
        ) == facts | {"path": str(again / "fake")}
        assert json.loads(run.ask("archive", str(packed), "--json").stdout) == facts | {
            "path": str(packed),
            "bytes": packed.stat().st_size,
        }


def test_prune_prints_what_is_deleted_as_one_object(tmp_path: Path) -> None:
    with scene(tmp_path / "run", retention__keep_ancestors=5) as run:
        run.finish()
        before = {path.name for path in run.run.checkpoints.iterdir()}
        tried = json.loads(run.ask("prune", "--keep", "1", "--dry-run", "--json").stdout)
        done = json.loads(run.ask("prune", "--keep", "1", "--json").stdout)
        gone = before - {path.name for path in run.run.checkpoints.iterdir()}
        assert {one["path"] for one in done["checkpoints"]} == {f"checkpoints/{name}" for name in gone} != set()
        assert done["bytes"] == sum(one["bytes"] for one in done["checkpoints"]) > 0
        assert (tried.pop("dry_run"), done.pop("dry_run")) == (True, False) and tried == done


def test_prune_leaves_a_run_that_trains_alone(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=60) as run:
        master = run.start()
        master.wait_for(lambda: run.head_step() >= 0)
        assert run.ask("prune").returncode == 69
