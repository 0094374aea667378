"""What a profile means on a machine: the engine and path that its model gets, and whether it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import planner
from orchestrator.machine import Machine
from orchestrator.planner import Changes, Plan
from profiles.architecture import PLAIN_ENGINE, path_of, reason_against
from profiles.built_in import BUILT_IN
from profiles.footprint import GIB, Demand
from profiles.schema import Model, Profile
from profiles.shapes import ARCHITECTURES, Shape, published, shape_of
from profiles.worker_kinds import worker_kind_of


def shape_for(model: Model) -> Shape | None:
    """The shape of the model that a profile names: its config.json, else what is published under the folder's name.

    None for a built-in model, which needs no planning, and for one that is not known.
    """
    if model.random_init != "off":
        return shape_of(ARCHITECTURES[model.random_init])
    if model.path in BUILT_IN:
        return None
    folder = Path(model.path).expanduser()
    try:
        return shape_of(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return published(folder.name)  # what is wrong with a config.json that is there, the worker says


def config_for(model: Model) -> Mapping[str, Any] | None:
    """The config.json of the model that a profile names; None: it is not there, or cannot be read."""
    if model.random_init != "off":
        return ARCHITECTURES[model.random_init]
    known = BUILT_IN.get(model.path)
    folder = known.directory if known else Path(model.path).expanduser()
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class ProfileVerdict:
    """What was found for a profile on a machine. plan: None where no shape is known, or no GPU is meant."""

    profile: Profile
    machine: Machine
    plan: Plan | None
    changes: Changes | None = None
    """Settings that would fit, where the profile's do not."""
    least: Demand | None = None
    """What it takes at the least, with short sequences, where no settings fit."""
    is_new: bool = True
    """No run has begun with the profile."""
    why: str = ""
    """Why the engine is not the one that the profile names, or what `auto` means; empty where it is."""
    path: str = ""
    """What computes the model, in one line; empty where that is not known before it is loaded."""
    is_plain: bool = False
    """Plain transformers computes it."""

    @property
    def is_refused(self) -> bool:
        """Where only a cap is known, and no card, the worker decides: it may find no GPU to be capped."""
        is_too_large = self.plan is not None and not self.plan.fits and self.machine.card is not None
        return is_too_large and self.profile.memory.on_small_card == "refuse"


def judge(profile: Profile, machine: Machine, *, is_new: bool = True) -> ProfileVerdict:
    """The profile with its engine settled, and whether it fits."""
    config = config_for(profile.model) if worker_kind_of(profile).uses_model else None
    if config is None:
        return _judged(profile, machine, is_new=is_new)
    longest = profile.sampling.max_prompt_tokens + profile.sampling.max_completion_tokens
    reason = reason_against(config, longest)
    if reason and profile.sampling.engine != PLAIN_ENGINE:
        profile = planner.taken_by(profile, PLAIN_ENGINE)
        verdict = replace(_judged(profile, machine, is_new=is_new), why=reason)
    else:
        verdict = _judged(profile, machine, is_new=is_new)
    path = path_of(config, verdict.profile.sampling.engine, longest)
    return replace(verdict, path=path, is_plain=bool(reason))


def _judged(profile: Profile, machine: Machine, *, is_new: bool) -> ProfileVerdict:
    card, shape = machine.card_for(profile.run.gpus), shape_for(profile.model)
    usable = card.usable_bytes if card else None
    cap = int(profile.memory.cap_gib * GIB)
    available = min(usable, cap) if usable and cap else usable
    profile, why = planner.settle_engine(
        profile, shape, available, has_vllm=machine.has_vllm, capability=card.capability if card else None
    )
    if shape is None or profile.run.device == "cpu":
        return ProfileVerdict(profile, machine, None, why=why)
    plan = planner.plan_of(profile, shape, usable, card.total_bytes if card else 0)
    if plan.fits or plan.usable_bytes is None:
        return ProfileVerdict(profile, machine, plan, why=why)
    card_bytes = card.total_bytes if card else 0  # only a cap is known
    changes = planner.nearest(profile, shape, plan.usable_bytes, card_bytes, is_new=is_new)
    least = None if changes else planner.least(profile, shape, plan.usable_bytes, card_bytes)
    return ProfileVerdict(profile, machine, plan, changes, least, is_new, why)
