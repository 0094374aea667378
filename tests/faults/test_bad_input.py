"""Rows E1, E7, E8, D10 to D13 and user errors: a clear message, its exit code, and nothing lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, scene
from tests.faults.invariants import check_invariants, ending, recover_here

KILLED = -signal.SIGKILL


def told(master: Master, *parts: str) -> None:
    """The three lines that every error ends with, and no traceback."""
    error = master.err.read_text()
    assert "Traceback" not in error, error
    lines = [line.split(":")[0] for line in error.splitlines() if line[:5] in ("error", "kept:", "next:")]
    assert lines == ["error", "kept", "next"], error
    for part in parts:
        assert part in error, error


def test_E1_second_master_is_refused_and_the_first_goes_on(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="no_progress:4") as run:
        first = run.start()
        first.wait_for_line("checkpoint of step 2 is durable")
        told(run.finish(code=69), f"held by pid {first.pid}")
        os.kill(first.worker_pid(), signal.SIGKILL)
        assert first.end() == 0
        check_invariants(run, clean.ending)


def test_E7_profile_typo_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        told(run.finish("", "--set", "run.max_cyles=3", code=66), "max_cyles", "max_cycles")
        told(run.launch_and_end([*run.command()[:5], "faek"], code=66), "faek", "fake")
        assert not run.run.root.exists(), "nothing was started"


def test_E7_changed_profile_is_shown_and_refused_where_it_cannot_change(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("commit.after:3", code=KILLED)
        told(run.finish(code=66, run__seed=7), "seed")
        told(run.finish(code=66, run__steps_per_cycle=9), "--accept-changes")
        assert run.head_step() == 4
        master = run.finish("", "--accept-changes", run__checkpoint_every=3)
        assert "checkpoint_every" in master.out.read_text()
        recover_here(run.run)
        assert ending(run) == clean.ending


@pytest.mark.slow
@pytest.mark.parametrize(
    "crash", [pytest.param("worker.before_ready:1", marks=pytest.mark.exhaustive), "ckpt.files_written:1"]
)
def test_E7_before_the_first_checkpoint_every_knob_may_change_and_the_run_is_as_one_that_began_so(
    crash: str, tmp_path: Path
) -> None:
    with scene(tmp_path / "other", run__seed=7) as other, scene(tmp_path / "run") as run:
        other.finish()
        dies_at_first(run, crash)
        said = run.finish(run__seed=7, run__steps_per_cycle=6).out.read_text()
        assert re.search(r"it has no checkpoint yet, so every knob may:\n  run.seed +0 -> 7\n", said)
        assert run.one("SELECT seed FROM runs") == 7
        check_invariants(run, ending(other))
        told(run.finish(code=66, run__seed=8), "cannot go on with another value of run.seed")


@pytest.mark.parametrize("crash", ["commit.before:1", pytest.param("commit.inside:1", marks=pytest.mark.exhaustive)])
def test_E7_a_first_checkpoint_on_disk_counts_also_without_a_row(crash: str, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        dies_at_first(run, crash)
        told(run.finish(code=66, run__seed=7), "cannot go on with another value of run.seed")
        run.finish()
        assert ending(run) == clean.ending


def test_E7_killed_while_the_change_is_stored_the_run_has_the_old_profile_or_the_new(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        dies_at_first(run, "ckpt.files_written:1")
        for number in range(1, 9):
            ended = run.start(f"store.before_commit:{number}", run__seed=7, retry__backoff_s=60).end()
            assert ended == KILLED and run.one("SELECT seed = json_extract(profile, '$.run.seed') FROM runs") == 1
            if run.one("SELECT seed FROM runs") == 7:
                break
        assert run.one("SELECT seed FROM runs") == 7 and number > 1
        run.finish(run__seed=0)
        check_invariants(run)


def dies_at_first(run: Scene, crash: str) -> None:
    """The master too is killed, once its first worker has come to that point, and nothing is left alive."""
    master = run.start(crash, retry__backoff_s=60)
    master.wait_for(lambda: (run.one("SELECT count(*) FROM attempts WHERE state='failed'") or 0) == 1 or gone(master))
    master.kill()
    run.wait_until_nobody_is_left()
    assert run.head_step() == -1


def gone(master: Master) -> bool:
    return master.process.poll() is not None


def test_store_of_a_newer_version_is_untouched(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        with closing(sqlite3.connect(run.run.store)) as db:
            db.execute("PRAGMA user_version=99")
        before = run.run.store.read_bytes()
        told(run.finish(code=65), "newer", "99")
        assert run.run.store.read_bytes() == before


def test_D6_store_deleted_while_checkpoints_are_there_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        run.run.store.unlink()
        told(run.finish(code=74), "holds checkpoints but no store")
        assert len(list(run.run.checkpoints.iterdir())) == 3


def test_D7_store_damaged_is_refused_and_checkpoints_stay(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        content = bytearray(run.run.store.read_bytes())
        content[4096 : 4096 * 6] = os.urandom(4096 * 5)
        run.run.store.write_bytes(content)
        told(run.finish(code=74), "damaged")
        run.run.store.write_bytes(b"no database at all, " * 100)
        told(run.finish(code=74), "damaged")
        assert len(list(run.run.checkpoints.iterdir())) == 3


def test_D13_checkpoint_of_another_run_is_quarantined(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "other", run__seed=5) as other, scene(tmp_path / "run") as run:
        other.finish()
        run.finish("commit.after:3", code=KILLED)
        shutil.copytree(other.head_dir(), run.run.checkpoints / other.head_dir().name)
        assert "it belongs to another run" in run.finish().out.read_text()
        check_invariants(run, clean.ending)


def test_D14_run_directory_renamed_goes_on(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("commit.after:3", code=KILLED)
        run.wait_until_nobody_is_left()
        run.run.root.rename(run.run.root.with_name("moved"))
        run.name = "moved"
        run.finish()
        check_invariants(run, clean.ending)


# --- full and failing disks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("ckpt.files_written:3", "enospc"),
        ("durable.before_rename:2", "eio"),
        pytest.param("ckpt.files_written:3", "eio", marks=pytest.mark.exhaustive),
        pytest.param("durable.before_rename:2", "enospc", marks=pytest.mark.exhaustive),
    ],
)
def test_D10_D11_failing_write_ends_with_73_and_keeps_the_head(
    point: str, action: str, clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("commit.after:1:kill", code=KILLED)
        head = run.head_step()
        assert head >= 0, "there is a head to keep"
        told(run.finish(f"{point}:{action}", code=73), "No space left" if action == "enospc" else "Input/output error")
        assert run.one("SELECT state FROM runs") == "failed"
        assert run.head_step() >= head
        run.finish()
        check_invariants(run, clean.ending)


def test_a_failure_that_a_person_has_seen_stays_forgiven_when_power_fails_then(clean: Clean, tmp_path: Path) -> None:
    """Nobody needs to start the run twice after that, so a service manager can."""
    with scene(tmp_path / "run") as run:
        run.finish("ckpt.files_written:2:eio", code=73)
        run.finish("attempt.started:1:kill", code=KILLED)
        run.finish()
        check_invariants(run, clean.ending)


@contextmanager
def tiny_disk(at: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own; skips where this user may not mount."""
    at.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(at)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root and its capabilities")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


STOPS = {"retention__on_full_disk": "stop"}


def test_D10_full_disk_ends_with_73_and_goes_on_once_there_is_room(clean: Clean, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "run", 24), scene(tmp_path / "run", fake__step_s=0.2, **STOPS) as run:
        master = run.start()
        master.wait_for_line("checkpoint of step 2 is durable")
        room = tmp_path / "run" / "filler"
        with room.open("wb", buffering=0) as file:
            fill(file.fileno())
        assert master.end() == 73, master.text()
        told(master, "full" if "is full" in master.err.read_text() else "No space left")
        room.unlink()
        run.finish()
        check_invariants(run, clean.ending)


def fill(fd: int) -> None:
    """Write until there is no room at all."""
    for size in (1 << 20, 4096, 1):
        try:
            while True:
                os.write(fd, b"x" * size)
        except OSError:
            continue


def test_D11_read_only_file_system_ends_with_73_and_is_still_read(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", 40), scene(tmp_path / "disk" / "run") as run:
        run.finish()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        outside = Scene(tmp_path / "outside")
        command = run.command("--plain", run__max_cycles=2)
        master = outside.launch(command)
        assert master.end() == 73, master.text()
        told(master, "Read-only file system")
        status = run.ask("status")
        assert status.returncode == 0 and "finished" in status.stdout, status.stdout + status.stderr
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path / "disk")], check=True)


def test_D12_permission_denied_ends_with_77_before_any_change(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        before = sorted(path.name for path in run.run.root.rglob("*"))
        run.run.root.chmod(0o500)
        command = [*bound_by_permissions(), *run.command("--plain", run__max_cycles=2)]
        master = run.launch(command)
        assert master.end() == 77, master.text()
        told(master)
        run.run.root.chmod(0o700)
        assert sorted(path.name for path in run.run.root.rglob("*")) == before


def bound_by_permissions() -> list[str]:
    """What to put before a command so that permission bits bind it: root without its capabilities."""
    if os.getuid():
        return []
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if shutil.which("setpriv") is None or subprocess.run([*bare, "true"], check=False).returncode:
        pytest.skip("permission bits do not bind root, and setpriv cannot take its capabilities away")
    return bare


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken_model(tmp_path: Path) -> Path:
    """The built-in model, its weights cut in the middle."""
    model = tmp_path / "model"
    shutil.copytree(REPOSITORY / "workers/pocket/weights", model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return model


@pytest.mark.exhaustive  # the next test refuses a model through the daemon, tests/workers/models/test_load.py this one
def test_E8_model_missing_is_refused_by_name(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        told(azr(run, tmp_path / "nowhere"), str(tmp_path / "nowhere"))


@pytest.mark.slow
def test_E8_model_torn_is_refused_by_name(broken_model: Path, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        told(azr(run, broken_model), "model.safetensors")


@pytest.mark.exhaustive  # as a torn model is above; each refusal has a test where it is decided
@pytest.mark.parametrize(
    ("settings", "said", "remedy"),
    [
        pytest.param(
            ["adapter.rank=4", 'adapter.targets=["gate"]'], "adapter.targets names gate", "set adapter.targets to some",
            id="a target of LoRA",
        ),
        pytest.param(
            ["sampling.engine=vllm"], "no rollout engine works; vllm: ", 'sampling.fallback=["native"]', id="vLLM",
            marks=pytest.mark.skipif(find_spec("vllm") is not None, reason="here it may start"),
        ),
        pytest.param(
            ["azr.seed_tasks=9", "azr.max_seed_batches=1", "azr.proposals_per_task=2", "azr.group_size=2"],
            "seed_stalled: 1 batches", "azr.max_seed_batches=N", id="seeds",
        ),
    ],
)  # fmt: skip
def test_E8_what_cannot_be_had_is_refused_with_what_to_type(
    settings: list[str], said: str, remedy: str, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        told(azr(run, None, *settings), said, remedy)


def azr(run: Scene, model: Path | None, *settings: str) -> Master:
    command = [sys.executable, "-m", "orchestrator", "run", "--profile", "pocket", "--run", run.name, "--plain",
               "--runs", str(run.root / "runs")]  # fmt: skip
    all_settings = [*([f"model.path={model}"] if model else []), *settings]
    return run.launch_and_end([*command, *(word for one in all_settings for word in ("--set", one))], code=66)
