"""Power fails at any moment, and the disk holds no more than what was synced, or any part of the rest beside it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.faults.conftest import Clean
from tests.faults.harness import Scene, faults, scene
from tests.faults.invariants import check_invariants
from tests.faults.replay import NOT_ON_DISK, Call, Disk, calls, recorded

REPORTED = re.compile(rb"checkpoint of step (\d+) is durable")


@dataclass(frozen=True)
class Recording:
    """root: of the scene, where its run was. there: a copy of what was there before; None: nothing."""

    root: Path
    calls: Sequence[Call]
    left: dict[str, bytes]
    """The files at the end."""
    there: Path | None = None

    def at(self, count: int) -> tuple[Disk, int]:
        """The disk after so many calls, and the newest step whose checkpoint was reported durable; -1: none."""
        disk, reported = Disk(self.root, self.there), -1
        for call in self.calls[:count]:
            if not re.match(rf"{re.escape(str(self.root))}/(out|err)-\d+$", call.paths[0]):
                disk.do(call)
            elif call.name == "write":  # what the master prints
                reported = max([reported, *map(int, REPORTED.findall(call.data))])
        return disk, reported


def record(
    run: Scene,
    trace: Path,
    there: Path | None = None,
    command: list[str] | None = None,
    look: Callable[[Scene], None] = lambda run: None,
) -> Recording:
    """Run a command to its end under strace, and take its files away. there: as in `Recording`. None: `run`.

    look: at what it made, before that is taken away.
    """
    master = run.launch(recorded(command or run.command("--plain"), trace))
    assert master.end() == 0, master.text()
    look(run)
    left = {
        str(path.relative_to(run.root)): path.read_bytes()
        for path in run.root.rglob("*")
        if path.is_file() and not NOT_ON_DISK.search(path.name)
    }
    found = Recording(run.root, calls(trace, run.root), left, there)
    trace.unlink()
    shutil.rmtree(run.root / "runs")
    return found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("replay")
    with scene(folder / "run") as run:
        return record(run, folder / "trace")


def test_the_model_of_the_disk_ends_with_the_files_that_are_there(recording: Recording) -> None:
    disk, reported = recording.at(len(recording.calls))
    mine = {path: content for path, content in disk.now().items() if path.startswith("runs/")}
    assert mine == {path: content for path, content in recording.left.items() if path.startswith("runs/")}
    assert reported == 6


def resumed_from(text: str) -> int:
    """The step that a start says it goes on from; -1: it begins."""
    found = re.search(r"resumes from step (\d+)", text)
    return int(found[1]) if found else -1


def check_cut(recording: Recording, count: int, draw: Random | None, clean: Clean, least: int = -1) -> None:
    """Power fails after so many calls; then the run is started again, and must end as if nothing had happened.

    least: the newest step that was reported before the recording.
    """
    disk, reported = recording.at(count)
    reported = max(least, reported)
    with scene(recording.root) as run:
        disk.after_cut(recording.root, draw)
        master = run.finish()
        where = f"after call {count} of {len(recording.calls)}: {recording.calls[count - 1].name}"
        faults.append(where)
        assert "Traceback" not in master.text(), f"{where}\n{master.text()}"
        assert resumed_from(master.text()) >= reported, f"{where}: step {reported} was lost\n{master.text()}"
        check_invariants(run, clean.ending)


def syncs(recording: Recording) -> list[int]:
    """Numbers of calls after which more is safe than before."""
    return [number for number, call in enumerate(recording.calls, start=1) if call.name in ("fsync", "fdatasync")]


PARTS = 24
"""Of the syncs; each of them is tried by one part."""
MORE_PARTS = 96
"""The same of all calls."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, PARTS))])
def test_power_fails_after_a_sync_and_only_what_was_synced_is_there(
    part: int, recording: Recording, clean: Clean
) -> None:
    for count in syncs(recording)[part::PARTS]:
        check_cut(recording, count, None, clean)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, MORE_PARTS))]
)
def test_power_fails_at_any_call_and_any_part_of_what_was_not_synced_is_there(
    part: int, recording: Recording, clean: Clean
) -> None:
    for count in range(1 + part, len(recording.calls) + 1, MORE_PARTS):
        check_cut(recording, count, Random(count), clean)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("at", [0.5, *(pytest.param(n / 20, marks=pytest.mark.exhaustive) for n in range(1, 20))])
def test_power_fails_again_while_the_run_recovers(
    at: float, recording: Recording, clean: Clean, tmp_path: Path
) -> None:
    first = int(at * len(recording.calls))
    disk, reported = recording.at(first)
    with scene(recording.root) as run:
        disk.after_cut(recording.root, Random(first))
        shutil.copytree(recording.root, tmp_path / "there")
        again = record(run, tmp_path / "trace", tmp_path / "there")
    for count in range(1, len(again.calls), max(1, len(again.calls) // 4)):
        check_cut(again, count, Random(first + count), clean, reported)
