"""Power fails below ext4, xfs and btrfs: blocks that were not flushed are missing, torn or out of order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests import REPOSITORY
from tests.faults.block_disk import NAME, Record, after_cut, records
from tests.faults.conftest import Clean
from tests.faults.harness import faults, scene
from tests.faults.invariants import check_invariants

REPORTED = re.compile(rb"checkpoint of step (\d+) is durable")
FILE_SYSTEMS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
SIZE = {"ext4": 128 << 20, "xfs": 320 << 20, "btrfs": 256 << 20}
"""xfs and btrfs refuse smaller ones."""


def run_root(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    run_root("mount", "-o", "loop", image, at)
    try:
        yield at
    finally:
        for _ in range(50):
            if subprocess.run(["umount", at], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)


@dataclass(frozen=True)
class BlockRecording:
    """What a run wrote to its disk. said: what its master had printed in the end."""

    before: Path
    log: Sequence[Record]
    said: bytes


def reason_against(file_system: str) -> str:
    if os.getuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK) or not Path("/dev/loop-control").exists():
        return "needs root, /dev/fuse and loop devices"
    program = FILE_SYSTEMS[file_system][0]
    if shutil.which(program) is None or file_system not in Path("/proc/filesystems").read_text():
        return f"needs {program} and a kernel with {file_system}"
    return ""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BlockRecording]:
    """One for each file system, made when it is first asked for."""

    class Made(dict[str, BlockRecording]):
        def __missing__(self, file_system: str) -> BlockRecording:
            if reason := reason_against(file_system):
                pytest.skip(reason)
            folder = tmp_path_factory.mktemp(file_system)
            empty = folder / "before"
            empty.touch()
            os.truncate(empty, SIZE[file_system])
            run_root(*FILE_SYSTEMS[file_system], empty)
            self[file_system] = record(empty, folder)
            return self[file_system]

    return Made()


def record(before: Path, folder: Path) -> BlockRecording:
    """Run to the end on a disk that remembers. before: the image that the disk begins with."""
    image, log, point = folder / "recorded", folder / "log", folder / "fuse"
    run_root("cp", "--sparse=always", before, image)
    point.mkdir()
    out = folder / "run" / "out-0"
    server = subprocess.Popen([sys.executable, "-m", "tests.faults.block_disk", point, image, log, out], cwd=REPOSITORY)
    try:
        disk = point / NAME.decode()
        while not disk.exists():
            assert server.poll() is None, "the disk could not be served"
            time.sleep(0.02)
        with mounted(disk, folder / "mounted") as at, scene(folder / "run") as run:
            (folder / "run").mkdir()
            (folder / "run" / "runs").symlink_to(at)
            run.finish()
            said = run.masters[0].out.read_bytes()
    finally:
        run_root("umount", point)
        server.wait(10)
    image.unlink()
    return BlockRecording(before, list(records(log)), said)


def reported_before(of: BlockRecording, count: int) -> int:
    """The newest step whose checkpoint was reported durable before the last flush; -1: none."""
    mark = max((record.mark for record in of.log[:count] if record.is_flush), default=0)
    return max((int(step) for step in REPORTED.findall(of.said[:mark])), default=-1)


def check_cut(of: BlockRecording, count: int, draw: Random | None, clean: Clean, folder: Path, least: int = -1) -> None:
    """Power fails after so many writes and flushes; the run is started again, and must end as if nothing had happened.

    least: the newest step that was reported before the recording.
    """
    image = folder / "image"
    after_cut(of.before, of.log, count, draw, image)
    reported = max(least, reported_before(of, count))
    where = f"after record {count} of {len(of.log)}"
    with mounted(image, folder / "mounted") as at, scene(folder / "run") as run:
        (folder / "run").mkdir()
        (folder / "run" / "runs").symlink_to(at)
        master = run.finish()
        faults.append(where)
        text = master.text()
        assert "Traceback" not in text, f"{where}\n{text}"
        found = re.search(r"resumes from step (\d+)", text)
        assert (int(found[1]) if found else -1) >= reported, f"{where}: step {reported} was lost\n{text}"
        check_invariants(run, clean.ending)


PARTS = 100
"""Of the flushes, some 300; each of them is tried by one part."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, PARTS))])
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_fails_between_two_flushes(
    file_system: str, part: int, recordings: dict[str, BlockRecording], clean: Clean, tmp_path: Path
) -> None:
    of = recordings[file_system]
    flushes = [number for number, record in enumerate(of.log, start=1) if record.is_flush]
    for number in flushes[part::PARTS]:
        check_cut(of, number, None, clean, tmp_path)
        check_cut(of, min(number + 6, len(of.log)), Random(number), clean, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("file_system", "at"),
    [
        ("ext4", 0.5),
        *(
            pytest.param(file_system, at, marks=pytest.mark.exhaustive)
            for file_system in FILE_SYSTEMS
            for at in (0.1, 0.3, 0.7, 0.9)
        ),
    ],
)
def test_power_fails_again_while_the_run_recovers(
    file_system: str, at: float, recordings: dict[str, BlockRecording], clean: Clean, tmp_path: Path
) -> None:
    of = recordings[file_system]
    first = int(at * len(of.log))
    after_cut(of.before, of.log, first, Random(first), tmp_path / "before")
    again = record(tmp_path / "before", tmp_path)
    for count in range(1, len(again.log), max(1, len(again.log) // 4)):
        check_cut(again, count, Random(count), clean, tmp_path, reported_before(of, first))


def test_a_run_flushes_often(recordings: dict[str, BlockRecording]) -> None:
    of = recordings["ext4"]
    assert sum(record.is_flush for record in of.log) > 40
    assert REPORTED.findall(of.said)[-1] == b"6"
