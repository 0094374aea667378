"""kill -9 keeps the page cache, so it proves nothing about fsync; the order of the system calls does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from state import durable
from state.layout import RunDir
from tests.state.samples import save


class Trace:
    """Names of what was written, fsynced and renamed, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        real_fsync, real_rename, real_write = os.fsync, os.rename, os.write

        def fsync(fd: int) -> None:
            self.calls.append(f"fsync {self._name(fd)}")
            real_fsync(fd)

        def rename(source: os.PathLike[str], target: os.PathLike[str]) -> None:
            self.calls.append(f"rename {Path(source).name} {Path(target).name}")
            real_rename(source, target)

        def write(fd: int, data: bytes) -> int:
            self.calls.append(f"write {self._name(fd)}")
            return real_write(fd, data)

        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "rename", rename)
        patch.setattr(os, "write", write)

    @staticmethod
    def _name(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    yield Trace(monkeypatch)


def test_a_checkpoint_is_durable_from_the_inside_out(tmp_path: Path, trace: Trace) -> None:
    run = RunDir(tmp_path)
    durable.make_dir(run.checkpoints)
    trace.calls.clear()
    save(run, step=2)
    assert sorted(trace.calls[:2]) == ["fsync vocab.json", "fsync weights.bin"]  # at one time
    assert trace.calls[2:] == [
        "fsync tokenizer",
        "write MANIFEST.json",
        "fsync MANIFEST.json",
        "fsync .staging-t0",
        "rename .staging-t0 c0001-s000002-t0",
        "fsync checkpoints",
    ]


def test_a_file_is_synced_before_it_gets_its_name_and_its_name_after(tmp_path: Path, trace: Trace) -> None:
    durable.write_file(tmp_path / "spec.json", b"{}")
    expected = ["write .spec.json.tmp", "fsync .spec.json.tmp", "rename .spec.json.tmp spec.json"]
    assert trace.calls == [*expected, f"fsync {tmp_path.name}"]


def test_a_new_directory_is_synced_into_its_parent(tmp_path: Path, trace: Trace) -> None:
    durable.make_dir(tmp_path / "a" / "b")
    assert trace.calls == [f"fsync {tmp_path.name}", "fsync a"]


def test_a_move_between_directories_syncs_both(tmp_path: Path, trace: Trace) -> None:
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    (tmp_path / "from" / "x").mkdir()
    durable.rename_dir(tmp_path / "from" / "x", tmp_path / "to" / "x")
    assert trace.calls == ["rename x x", "fsync to", "fsync from"]


def test_an_appended_line_is_one_write(tmp_path: Path, trace: Trace) -> None:
    appender = durable.Appender(tmp_path / "events.jsonl")
    trace.calls.clear()
    appender.append(b"{}")
    appender.append(b"[]", sync=True)
    assert trace.calls == ["write events.jsonl", "write events.jsonl", "fsync events.jsonl"]
    assert (tmp_path / "events.jsonl").read_bytes() == b"{}\n[]\n"
