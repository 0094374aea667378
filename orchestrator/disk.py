"""Does the file system of the runs hold what the retention rule keeps at most? Asked before anything is started."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.display.wording import harmless, size
from orchestrator.judging import shape_for
from orchestrator.preflight import command_of
from profiles.built_in import BUILT_IN
from profiles.disk import DiskPlan, checkpoint_bytes, disk_plan
from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import with_values
from profiles.schema import Profile
from profiles.shapes import Shape, shape_of
from state.layout import RunDir
from state.reader import Reader, is_born

LEAST = {"retention.keep_ancestors": 1, "retention.keep_every": 0}
"""Retention that takes least, and changes nothing else."""


@dataclass(frozen=True)
class There:
    """What a run has on disk already. Nothing, where it is new."""

    occupied: int = 0
    """Bytes of its checkpoints, rollouts and ballast."""
    largest: int = 0
    """Bytes of its largest checkpoint."""
    for_good: int = 0
    """Checkpoints of every Nth cycle."""


@dataclass(frozen=True)
class Room:
    """plan: None where the size of a checkpoint is not known yet. free: bytes for this user in `place`."""

    plan: DiskPlan | None
    there: There
    free: int
    place: Path
    may_start: bool = False
    """retention.on_small_disk says to start all the same."""

    @property
    def missing(self) -> int:
        """Bytes; 0: there is enough."""
        return max(0, self.plan.total - self.there.occupied - self.free) if self.plan is not None else 0

    @property
    def is_refused(self) -> bool:
        return self.missing > 0 and not self.may_start


def room_for(profile: Profile, run: RunDir) -> Room:
    """The plan for a profile in a run's directory, which need not be there yet. Writes nothing."""
    there = what_is_there(run, profile)
    place = run.root.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    volume = os.statvfs(place)
    return Room(
        plan_for(profile, there),
        there,
        volume.f_bavail * volume.f_frsize,
        place,
        profile.retention.on_small_disk == "warn",
    )


def plan_for(profile: Profile, there: There) -> DiskPlan | None:
    """By the model's shape, by the largest checkpoint that is there, whichever is more. None: neither is known."""
    one = max(checkpoint_bytes(profile, shape_on_disk(profile)) or 0, there.largest)
    return disk_plan(profile, one, there.for_good) if one else None


def shape_on_disk(profile: Profile) -> Shape | None:
    """The shape of the model, of a built-in one too."""
    if profile.model.random_init == "off" and profile.model.path in BUILT_IN:
        config = BUILT_IN[profile.model.path].directory / "config.json"
        return shape_of(json.loads(config.read_bytes()))
    return shape_for(profile.model)


def what_is_there(run: RunDir, profile: Profile) -> There:
    """As far as it can be read: what is wrong with a store is reported when it is opened."""
    if not is_born(run):
        return There()
    with suppress(LonghaulError, OSError), closing(Reader.open(run)) as reader:
        known = [facts for facts in reader.checkpoints() if facts.state == "committed"]
        every = profile.retention.keep_every
        for_good = sum(facts.is_cycle_end and facts.cycle % every == 0 for facts in known) if every else 0
        places = (run.checkpoints, run.ballast, *run.cycles.glob("*/rollouts"))
        return There(sum(map(bytes_below, places)), max((facts.bytes for facts in known), default=0), for_good)
    return There()


def bytes_below(path: Path) -> int:
    """Bytes that a file, or all files of a directory, take on disk. What vanishes meanwhile counts as nothing."""
    total = 0
    for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with suppress(OSError):
            total += file.lstat().st_blocks * 512
    return total


# --- what is said -----------------------------------------------------------------------------------------------------


def disk_line(room: Room) -> str:
    """One line about the disk, before the first step and in the plan. (pure)"""
    plan = room.plan
    if plan is None:
        return "disk: not planned, the size of the model is not known yet"
    parts = ", ".join(f"{name} {size(part)}" for name, part in plan.parts.items())
    line = f"disk: up to {size(plan.total)} in checkpoints of up to {size(plan.checkpoint)} ({parts})"
    if plan.growth:
        line += f"; every Nth cycle adds {size(plan.growth)} for good (retention.keep_every)"
    if room.there.occupied:
        line += f"; {size(room.there.occupied)} of it are there"
    return f"{line}; {size(room.free)} are free in {harmless(str(room.place))}"


def too_full(room: Room, profile: Profile, run: RunDir, args: argparse.Namespace) -> LonghaulError:
    """The refusal, with the retention that would fit where there is one."""
    plan = room.plan
    assert plan is not None
    there = f", of which {size(room.there.occupied)} are there" if room.there.occupied else ""
    free = f"{size(room.free)} are free in {harmless(str(room.place))}"
    return LonghaulError(
        f"the disk is too small for run '{run.name}': it needs up to {size(plan.total)}{there}, and {free}: "
        f"{size(room.missing)} are missing\n  {disk_line(room)}",
        kept="nothing was started",
        next_command=advice(room, profile, run, args),
        exit_code=ExitCode.DISK,
    )


def advice(room: Room, profile: Profile, run: RunDir, args: argparse.Namespace) -> str:
    """What to type where the disk is too small."""
    anyway = "       or start all the same: --set retention.on_small_disk=warn"
    least = plan_for(with_values(profile, LEAST), room.there)
    if least is not None and least.total - room.there.occupied <= room.free:
        words = " ".join(f"--set {name}={value}" for name, value in LEAST.items())
        return f"{command_of(args, LEAST)} {words}   (needs {size(least.total)})\n{anyway}"
    return f"df -h {room.place}   (free {size(room.missing)}, or keep runs elsewhere: --runs)\n{anyway}"


def disk_facts(room: Room) -> Mapping[str, Any]:
    """The same for a program; bytes. (pure)"""
    plan = room.plan
    if plan is None:
        return {"planned": False, "free_bytes": room.free}
    return {
        "planned": True,
        "total_bytes": plan.total,
        "checkpoint_bytes": plan.checkpoint,
        "parts": dict(plan.parts),
        "growth_bytes": plan.growth,
        "occupied_bytes": room.there.occupied,
        "free_bytes": room.free,
        "missing_bytes": room.missing,
    }
