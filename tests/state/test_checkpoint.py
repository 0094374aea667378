import errno
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.checkpoint import (
    MANIFEST,
    Damaged,
    encode_manifest,
    problem_with,
    read_manifest,
    verify,
)
from state.layout import RunDir
from tests import REPOSITORY
from tests.state.samples import SAVE_CODE, python, save, write_state

CKPT_POINTS = ["staging_created", "files_written", "manifest_written", "before_rename", "after_rename"]
MB = 1 << 20


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_what_was_staged_verifies_and_is_private(run: RunDir) -> None:
    saved = save(run, step=820, cycle=41)
    assert saved.path == "checkpoints/c0041-s000820-t0"
    assert verify(saved.directory, deep=True) == saved.manifest
    assert sorted(saved.manifest.files) == ["tokenizer/vocab.json", "weights.bin"]
    modes = {path.stat().st_mode & 0o777 for path in saved.directory.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert saved.directory.stat().st_mode & 0o777 == 0o700


def test_equal_state_gives_an_equal_digest_whoever_wrote_it(run: RunDir) -> None:
    one = save(run, step=1)
    other = save(run, step=1, parent="x", token="t1", attempt=2, run_id="run-b", versions={})
    different = save(run, step=1, token="t2", write=write_state(b"weighty"))
    assert one.digest == other.digest != different.digest
    assert one.checkpoint_id != other.checkpoint_id


def test_the_same_token_and_step_again_is_the_same_checkpoint(run: RunDir) -> None:
    first = save(run, step=3)
    assert save(run, step=3, parent=first.checkpoint_id, write=write_state(b"never written")) == first


def test_a_damaged_one_of_the_same_name_is_left_for_recovery(run: RunDir) -> None:
    first = save(run, step=3)
    (first.directory / "weights.bin").write_bytes(b"weightS")
    assert save(run, step=3).path == f"{first.path}.2"
    assert problem_with(first.directory, deep=True)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda d: (d / "weights.bin").write_bytes(b"weightS"), "weights.bin was changed"),
        (lambda d: (d / "weights.bin").write_bytes(b"weigh"), "weights.bin has 5 bytes"),
        (lambda d: (d / "weights.bin").unlink(), "weights.bin is missing"),
        (lambda d: (d / "more").write_bytes(b""), "more is not in the manifest"),
        (lambda d: (d / MANIFEST).unlink(), "it has no MANIFEST.json"),
        (lambda d: os.truncate(d / MANIFEST, 40), "MANIFEST.json is torn"),
        (lambda d: (d / "link").symlink_to("weights.bin"), "link is a symbolic link"),
        (lambda d: shutil.rmtree(d), "it is missing"),
    ],
)
def test_d4_every_kind_of_damage_is_named(run: RunDir, harm, reason: str) -> None:
    saved = save(run)
    harm(saved.directory)
    with pytest.raises(Damaged) as damaged:
        verify(saved.directory, deep=True)
    assert damaged.value.reason.startswith(reason)


def test_a_shallow_look_finds_sizes_but_not_bits(run: RunDir) -> None:
    saved = save(run)
    (saved.directory / "weights.bin").write_bytes(b"weightS")
    assert verify(saved.directory, deep=False) == saved.manifest
    (saved.directory / "weights.bin").write_bytes(b"w")
    assert problem_with(saved.directory, deep=False)


def test_a_checkpoint_that_is_a_symbolic_link_is_refused(run: RunDir) -> None:
    saved = save(run)
    link = run.checkpoints / "c0009-s000009-x"
    link.symlink_to(saved.directory, target_is_directory=True)
    assert problem_with(link, deep=True) == "it is not a directory"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_of_any_file_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.getbasetemp() / "tamper"
    saved = save(RunDir(root))
    path = saved.directory / data.draw(st.sampled_from([*saved.manifest.files, MANIFEST]))
    good = path.read_bytes()
    at, mask = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :])
    try:
        assert problem_with(saved.directory, deep=True)
    finally:
        path.write_bytes(good)


def test_a_newer_format_is_refused_but_not_called_damaged(run: RunDir) -> None:
    saved = save(run)
    import msgspec

    newer = msgspec.structs.replace(saved.manifest, format_version=2)
    (saved.directory / MANIFEST).write_bytes(encode_manifest(newer))
    with pytest.raises(LonghaulError) as error:
        read_manifest(saved.directory)
    assert error.value.exit_code == ExitCode.VERSION


@pytest.mark.parametrize("point", CKPT_POINTS)
def test_w4_w5_w6_a_kill_while_saving_leaves_the_head_and_never_half_a_checkpoint(run: RunDir, point: str) -> None:
    head = save(run, step=1)
    child = python(SAVE_CODE, run.root, head.checkpoint_id, LONGHAUL_CRASHPOINT=f"ckpt.{point}:1")
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert verify(head.directory, deep=True)
    visible = [path for path in run.checkpoints.iterdir() if not path.name.startswith(".") and path != head.directory]
    assert [path.name for path in visible] == (["c0001-s000002-t0"] if point == "after_rename" else [])
    assert not any(problem_with(path, deep=True) for path in visible)
    again = save(run, step=2, parent=head.checkpoint_id, write=write_state(b"newer"))
    assert verify(again.directory, deep=True).parent == head.checkpoint_id
    assert not list(run.checkpoints.glob(".staging-*"))


@pytest.mark.parametrize("point", CKPT_POINTS[:-1])
@pytest.mark.parametrize("action", ["enospc", "eio"])
def test_d10_d11_a_full_or_failing_disk_removes_the_staging_and_keeps_the_head(
    run: RunDir, point: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state.crash import Armed

    head = save(run, step=1)
    monkeypatch.setattr("state.checkpoint.crash_point", Armed(f"ckpt.{point}:1:{action}").hit)
    with pytest.raises(LonghaulError) as error:
        save(run, step=2, parent=head.checkpoint_id)
    assert error.value.exit_code == ExitCode.DISK
    assert "head" in error.value.kept
    assert [path.name for path in run.checkpoints.iterdir()] == [head.directory.name]


def test_a_disk_that_fills_inside_a_writer_that_hides_the_error_is_a_full_disk(run: RunDir) -> None:
    def write(directory: Path) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(LonghaulError) as error:
        save(run, write=write)
    assert error.value.exit_code == ExitCode.DISK
    assert not list(run.checkpoints.iterdir())


def test_files_become_durable_at_one_time(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    both, really = threading.Barrier(2), durable.fsync_file

    def fsync_file(path: Path) -> None:
        both.wait(timeout=20)
        really(path)

    monkeypatch.setattr(durable, "fsync_file", fsync_file)
    saved = save(run)
    assert sorted(saved.manifest.files) == ["tokenizer/vocab.json", "weights.bin"]
    assert verify(saved.directory, deep=True) == saved.manifest


def test_the_first_file_that_cannot_become_durable_is_named_once_no_thread_writes_any_more(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, num_over = threading.Event(), [0]

    def fsync_file(path: Path) -> None:
        if path.name == "vocab.json":
            second.wait(timeout=20)
        second.set()
        num_over[0] += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO), path.name)

    monkeypatch.setattr(durable, "fsync_file", fsync_file)
    with pytest.raises(LonghaulError) as failure:
        save(run)
    cause = failure.value.__cause__.__cause__ if failure.value.__cause__ is not None else None
    assert failure.value.exit_code == ExitCode.DISK
    assert isinstance(cause, OSError) and cause.filename == "vocab.json"
    assert num_over == [2] and list(run.checkpoints.iterdir()) == []


def test_a_bug_in_a_writer_comes_out_as_it_is_and_leaves_nothing(run: RunDir) -> None:
    with pytest.raises(ZeroDivisionError):
        save(run, write=lambda directory: 1 // 0)
    assert not list(run.checkpoints.iterdir())


def test_a_read_error_condemns_a_checkpoint_but_too_many_open_files_do_not(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(run)
    for number, expected in ((errno.EIO, Damaged), (errno.EMFILE, OSError), (errno.EACCES, LonghaulError)):

        def fail(path: Path, between: object, *, from_disk: bool, number: int = number) -> str:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("state.checkpoint._sha256", fail)
        with pytest.raises(expected):
            verify(saved.directory, deep=True)


def test_this_package_knows_no_torch_and_imports_fast() -> None:
    code = "import sys, state.recover, state.lock, state.registry; print('torch' in sys.modules)"
    assert python(code).stdout == "False\n"


def test_every_crash_point_in_the_source_is_a_known_name() -> None:
    import re

    from state.crash import POINTS

    used = {
        name
        for package in ("state", "orchestrator", "workers")
        for file in (REPOSITORY / package).rglob("*.py")
        for name in re.findall(r'\bcrash_point\("([^"]+)"\)', file.read_text())
    }
    assert used == POINTS
