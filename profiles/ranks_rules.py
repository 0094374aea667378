"""Checks of what several GPUs can do together (`run.gpus`), each returning a Finding or None; none raises. (pure)"""

from __future__ import annotations

from profiles.finding import Finding
from profiles.schema import Profile

ENGINES = frozenset({"native", "hf", "auto"})
"""Those that read the trainer's weights in its own process."""


def ranks_draw_rollouts_themselves(p: Profile) -> Finding | None:
    others = sorted({p.sampling.engine, *p.sampling.fallback} - ENGINES)
    if p.run.gpus == 1 or not others:
        return None
    return Finding(
        ("sampling.engine", "sampling.fallback", "run.gpus"),
        f"has {', '.join(others)}, which is untested with several GPUs; use native or hf",
    )


def ranks_share_exact_moments(p: Profile) -> Finding | None:
    if p.run.gpus == 1 or p.optimizer.kind == "adamw":
        return None
    return Finding(
        ("optimizer.kind", "run.gpus"),
        f'must be "adamw": the blocks of {p.optimizer.kind} would differ over shards; '
        "several GPUs divide the moments anyway",
    )


def ranks_have_work(p: Profile) -> Finding | None:
    if p.run.gpus == 1 or p.run.worker == "azr":
        return None
    if p.run.worker == "fake":
        return Finding(("run.gpus", "run.worker"), "must be 1: the worker fake trains in one process")
    if not p.grpo.sent.enabled:
        return None
    return Finding(
        ("run.gpus", "grpo.sent.enabled"),
        "must be 1: difficulties belong to the hash of all weights, which no rank has whole",
    )


RULES = (ranks_draw_rollouts_themselves, ranks_share_exact_moments, ranks_have_work)
