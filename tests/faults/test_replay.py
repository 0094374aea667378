"""Power fails at any moment, and the disk holds no more than what was synced, or any part of the rest beside it."""

from __future__ import annotations

import logging
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tests.faults.conftest import Clean
from tests.faults.harness import KNOBS, Scene, faults, scene
from tests.faults.invariants import check_invariants
from tests.faults.replay import NOT_ON_DISK, Call, Disk, calls, recorded
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.world import Violation

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
            reported = self.play(call, disk, reported)
        return disk, reported

    def play(self, call: Call, disk: Disk, reported: int) -> int:
        """Replay one call on the disk. Returns the newest step that was reported by then."""
        if not re.match(rf"{re.escape(str(self.root))}/(out|err)-\d+$", call.paths[0]):
            disk.do(call)
        elif call.name == "write":  # what the master prints
            return max([reported, *map(int, REPORTED.findall(call.data))])
        return reported


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


def check_simulated_cut(
    recording: Recording, disk: Disk, where: str, draw: Random | None, clean: Clean, least: int
) -> None:
    """As `check_cut`, but the masters that go on run in this process."""
    shutil.rmtree(recording.root, ignore_errors=True)
    disk.after_cut(recording.root, draw)
    finish_here(recording.root, where, clean, least)


def finish_here(root: Path, where: str, clean: Clean, least: int, *, may_walk_back: bool = False) -> None:
    """Go on with the run in `root` as a simulated schedule without faults does: all code of masters and workers on the
    real files, in a thirtieth of the time that their processes take. The run must end as if nothing had happened."""
    schedule = Schedule(
        zlib.crc32(where.encode()), root, stored_or_new(), {1: clean.ending}, is_there=True, may_walk_back=may_walk_back
    )
    logging.disable(logging.CRITICAL)  # workers log what is done to them
    try:
        schedule.play()
    except (Violation, AssertionError) as error:
        raise AssertionError(f"{where}: {error}\n{schedule.log.getvalue()}") from error
    finally:
        logging.disable(logging.NOTSET)
    faults.append(where)
    assert resumed_from(schedule.log.getvalue()) >= least, f"{where}: step {least} was lost\n{schedule.log.getvalue()}"


@cache
def stored_or_new() -> Profile:
    """For a run that was not born before the cut; any other has its profile."""
    return load_profile("fake", [f"{name}={value}" for name, value in KNOBS.items()]).profile


def cuts(recording: Recording) -> Iterator[tuple[int, str, Disk, int]]:
    """After each call: its number, the place in words, the disk, and the newest step that was reported durable."""
    disk, reported = Disk(recording.root, recording.there), -1
    for number, call in enumerate(recording.calls, start=1):
        reported = recording.play(call, disk, reported)
        yield number, f"after call {number} of {len(recording.calls)}: {call.name}", disk, reported


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


DRAWS = 3
"""Disks after each call: one with what was synced alone, the others with random parts of the rest."""
SHARES = 8


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(SHARES))
def test_power_fails_after_every_call(share: int, recording: Recording, clean: Clean) -> None:
    for number, where, disk, reported in cuts(recording):
        if number % SHARES == share:
            for draw in range(DRAWS):
                chosen = Random(f"{number} {draw}") if draw else None
                check_simulated_cut(recording, disk, f"{where}, disk {draw}", chosen, clean, reported)


@pytest.mark.timeout(600)
def test_power_fails_after_some_calls(recording: Recording, clean: Clean) -> None:
    for number, where, disk, reported in cuts(recording):
        if number % 12 == 5:
            check_simulated_cut(recording, disk, where, Random(number) if number % 24 == 5 else None, clean, reported)
