"""Judges a profile on a machine: which engine and implementation its model gets, and whether it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import planner
from orchestrator.machine import Machine
from orchestrator.planner import Changes, Plan
from profiles.architecture import PLAIN_ENGINE, path_of, reason_against
from profiles.built_in import BUILT_IN
from profiles.footprint import GIB, Demand
from profiles.hub_model import directory_of
from profiles.schema import Model, Profile
from profiles.shapes import ARCHITECTURES, Shape, published, shape_of
from profiles.text_part import text_part
from profiles.worker_kinds import worker_kind_of


def shape_for(model: Model) -> Shape | None:
    """The shape of the profile's model, from its config.json or else from the published model of the folder's name.

    None for an unknown model, and for a built-in one, which needs no planning.
    """
    if model.random_init != "off":
        return shape_of(ARCHITECTURES[model.random_init])
    if model.path in BUILT_IN:
        return None
    folder = directory_of(model)
    try:
        return shape_of(text_part(json.loads((folder / "config.json").read_bytes())))
    except (OSError, ValueError, KeyError, TypeError):
        return published(model.path.partition("@")[0].rpartition("/")[2])  # the worker reports a broken config.json


def config_for(model: Model) -> Mapping[str, Any] | None:
    """The config.json of the profile's model; None if it is missing or unreadable."""
    if model.random_init != "off":
        return ARCHITECTURES[model.random_init]
    folder = directory_of(model)
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return text_part(found) if isinstance(found, dict) else None


@dataclass(frozen=True)
class ProfileVerdict:
    """The result for a profile on a machine. plan: None if the shape is unknown or the profile uses the CPU."""

    profile: Profile
    machine: Machine
    plan: Plan | None
    changes: Changes | None = None
    """Settings that would fit, if the profile's do not."""
    least: Demand | None = None
    """Minimum demand, with short sequences, if no settings fit."""
    is_new: bool = True
    """Whether no run has begun with the profile yet."""
    why: str = ""
    """Why the engine differs from the profile's, or why `auto` chose it; otherwise empty."""
    path: str = ""
    """What computes the model, in one line; empty if unknown before loading."""
    is_plain: bool = False
    """Whether plain transformers computes the model."""

    @property
    def is_refused(self) -> bool:
        """Whether the profile is too large and must not start. Without a known card, the worker decides."""
        is_too_large = self.plan is not None and not self.plan.fits and self.machine.card is not None
        return is_too_large and self.profile.memory.on_small_card == "refuse"


def judge(profile: Profile, machine: Machine, *, is_new: bool = True) -> ProfileVerdict:
    """Choose the engine, and check whether the profile fits."""
    kind = worker_kind_of(profile)
    if kind.has_own_engine:
        return ProfileVerdict(profile, machine, None)
    config = config_for(profile.model) if kind.uses_model else None
    if config is None:
        return _judged(profile, machine, is_new=is_new)
    reason = reason_against(config)
    if reason and profile.sampling.engine != PLAIN_ENGINE:
        profile = planner.taken_by(profile, PLAIN_ENGINE)
        verdict = replace(_judged(profile, machine, is_new=is_new), why=reason)
    else:
        verdict = _judged(profile, machine, is_new=is_new)
    path = path_of(config, verdict.profile.sampling.engine)
    return replace(verdict, path=path, is_plain=bool(reason))


def _judged(profile: Profile, machine: Machine, *, is_new: bool) -> ProfileVerdict:
    card, shape = machine.card_for(profile.run.cards), shape_for(profile.model)
    usable = card.usable_bytes if card else None
    cap = int(profile.memory.cap_gib * GIB)
    available = min(usable, cap) if usable and cap else usable
    profile, why = planner.choose_engine(
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
