"""Rehearses a step's largest shapes, unless this run has done so under the same conditions.

The record is a file of the cache: without it, or if anything differs that decides what these shapes take, they are run
again. What else programs on the card hold is not a condition: if they leave less room than at the rehearsal, the step
that lacks it is repeated with smaller sizes, as ever.
"""

from __future__ import annotations

import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from state.cache import cache_root, keep
from workers.contract import WorkerSpec
from workers.cycle.saving import versions
from workers.memory.backoff import Sizes
from workers.rank_group.calls import Rehearse, Reserve
from workers.rank_group.leader import RankGroup

log = logging.getLogger("worker")

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("profiles", "workers")
SUFFIXES = (".py", ".cu", ".cuh")
"""What decides which tensors there are."""


class Conditions(msgspec.Struct, frozen=True):
    """All that decides what the largest shapes take, and whether that fits."""

    run_id: str
    profile_sha256: str
    """With it the cap, and all lengths."""
    isolate: bool
    reductions: int
    sizes: Sizes
    engine: str
    """Another one may have taken over."""
    card: str
    code: str
    versions: dict[str, str]
    allocator: str


def rehearse(ranks: RankGroup, spec: WorkerSpec, sizes: Sizes, *, is_first: bool) -> dict[str, Any]:
    """Facts for a `memory` event; empty if these shapes were rehearsed before. Then only the engine's cache is
    allocated, whose shape decides which graphs run: results are the same.

    is_first: of a new run, which always rehearses. With several ranks all attempts do.
    """
    device = ranks.replica.model.device
    before = conditions(ranks, spec, sizes, device)
    if not is_first and before is not None and before == read(spec.run_id):
        log.info("the largest shapes are not rehearsed: they were, under the same conditions")
        ranks.call(Reserve())
        return {}
    found: dict[str, Any] = ranks.call(Rehearse())[0]
    after = conditions(ranks, spec, sizes, device)
    if after is not None:
        keep(place(spec.run_id), msgspec.json.encode(after))
    return found


def conditions(ranks: RankGroup, spec: WorkerSpec, sizes: Sizes, device: torch.device) -> Conditions | None:
    """None where no record is kept: with several ranks, whose cards may differ, and without a GPU."""
    if ranks.size > 1 or device.type != "cuda":
        return None
    card = torch.cuda.get_device_properties(device)
    return Conditions(
        run_id=spec.run_id,
        profile_sha256=spec.profile_sha256,
        isolate=spec.isolate,
        reductions=spec.reductions,
        sizes=sizes,
        engine=type(ranks.replica.engine.engine).__name__,
        card=f"{card.name}, {card.total_memory} bytes, {card.major}.{card.minor}",
        code=code_sha256(),
        versions=versions(),
        allocator=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    )


def read(run_id: str) -> Conditions | None:
    """Those of the run's last rehearsal; None if there is no record, or none that can be read."""
    try:
        return msgspec.json.decode(place(run_id).read_bytes(), type=Conditions)
    except (OSError, msgspec.MsgspecError):
        return None


def place(run_id: str) -> Path:
    return cache_root() / "rehearsed" / f"{run_id}.json"


@cache
def code_sha256(root: Path = REPOSITORY) -> str:
    """Of the code in `PACKAGES`, by name and content."""
    found = hashlib.sha256()
    files = (path for package in PACKAGES for path in (root / package).rglob("*") if path.suffix in SUFFIXES)
    for path in sorted(files):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()
