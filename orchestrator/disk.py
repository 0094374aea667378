"""Checks before a start that the disk can hold everything the retention rule keeps."""

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
"""The retention that needs the least space."""


@dataclass(frozen=True)
class There:
    """What a run already has on disk."""

    occupied: int = 0
    """Size of its checkpoints, rollouts and ballast."""
    largest: int = 0
    """Size of its largest checkpoint."""
    for_good: int = 0
    """Number of checkpoints kept for every Nth cycle."""


@dataclass(frozen=True)
class Room:
    """The disk plan against the free space. plan: None if the size of a checkpoint is unknown.

    free: bytes available to this user in `place`.
    """

    plan: DiskPlan | None
    there: There
    free: int
    place: Path
    may_start: bool = False
    """Whether retention.on_small_disk allows a start anyway."""

    @property
    def missing(self) -> int:
        """Missing bytes; 0 if there is enough space."""
        return max(0, self.plan.total - self.there.occupied - self.free) if self.plan is not None else 0

    @property
    def is_refused(self) -> bool:
        return self.missing > 0 and not self.may_start


def room_for(profile: Profile, run: RunDir) -> Room:
    """The plan for a profile in a run directory, which need not exist yet. Writes nothing."""
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
    """Plan by the larger of the model's estimate and the largest existing checkpoint. None if both are unknown."""
    one = max(checkpoint_bytes(profile, shape_on_disk(profile)) or 0, there.largest)
    return disk_plan(profile, one, there.for_good) if one else None


def shape_on_disk(profile: Profile) -> Shape | None:
    """The shape of the model, including a built-in one."""
    if profile.model.random_init == "off" and profile.model.path in BUILT_IN:
        config = BUILT_IN[profile.model.path].directory / "config.json"
        return shape_of(json.loads(config.read_bytes()))
    return shape_for(profile.model)


def what_is_there(run: RunDir, profile: Profile) -> There:
    """What the run has on disk, as far as readable: opening the store reports any damage later."""
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
    """Disk usage of a file or directory tree in bytes. Ignores files that vanish meanwhile."""
    total = 0
    for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with suppress(OSError):
            total += file.lstat().st_blocks * 512
    return total


# --- messages ---------------------------------------------------------------------------------------------------------


def disk_line(room: Room) -> str:
    """One line about the disk, for the start and the plan. (pure)"""
    plan = room.plan
    if plan is None:
        return "disk: not planned, because the size of the model is unknown"
    parts = ", ".join(f"{name} {size(part)}" for name, part in plan.parts.items())
    line = f"disk: up to {size(plan.total)} in checkpoints of up to {size(plan.checkpoint)} ({parts})"
    if plan.growth:
        line += f"; every Nth cycle adds {size(plan.growth)} permanently (retention.keep_every)"
    if room.there.occupied:
        line += f"; {size(room.there.occupied)} of it already used"
    return f"{line}; {size(room.free)} free in {harmless(str(room.place))}"


def too_full(room: Room, profile: Profile, run: RunDir, args: argparse.Namespace) -> LonghaulError:
    """The refusal, with a retention that would fit if there is one."""
    plan = room.plan
    assert plan is not None
    there = f" ({size(room.there.occupied)} already used)" if room.there.occupied else ""
    free = f"{size(room.free)} are free in {harmless(str(room.place))}"
    return LonghaulError(
        f"the disk is too small for run '{run.name}': it needs up to {size(plan.total)}{there}, but {free}: "
        f"{size(room.missing)} are missing\n  {disk_line(room)}",
        kept="nothing was started",
        next_command=advice(room, profile, run, args),
        exit_code=ExitCode.DISK,
    )


def advice(room: Room, profile: Profile, run: RunDir, args: argparse.Namespace) -> str:
    """The next command if the disk is too small."""
    anyway = "       or start all the same: --set retention.on_small_disk=warn"
    least = plan_for(with_values(profile, LEAST), room.there)
    if least is not None and least.total - room.there.occupied <= room.free:
        words = " ".join(f"--set {name}={value}" for name, value in LEAST.items())
        return f"{command_of(args, LEAST)} {words}   (needs {size(least.total)})\n{anyway}"
    return f"df -h {room.place}   (free {size(room.missing)}, or keep runs elsewhere: --runs)\n{anyway}"


def disk_facts(room: Room) -> Mapping[str, Any]:
    """The same facts for programs, in bytes. (pure)"""
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
