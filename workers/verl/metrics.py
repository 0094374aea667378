"""verl's JSON lines as our steps. (pure, but for reading the file)"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from profiles.schema import Profile
from workers.verl.tail import Tail

NAMES: Mapping[str, str] = {
    "critic/score/mean": "reward",
    "response_length/mean": "tokens_mean",
    "response_length/min": "tokens_min",
    "response_length/max": "tokens_max",
    "response_length/clip_ratio": "truncated",
    "actor/entropy": "entropy",
    "actor/loss": "loss",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "actor/pg_clipfrac": "clip_high",
    "actor/pg_clipfrac_lower": "clip_low",
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",
    "rollout_corr/k3_kl": "mismatch_kl",
    "training/rollout_probs_diff_mean": "probability_gap_mean",
    "training/rollout_probs_diff_max": "probability_gap_max",
    "timing_s/step": "seconds",
    "timing_s/gen": "seconds/rollout",
    "timing_s/old_log_prob": "seconds/old_log_probs",
    "timing_s/ref": "seconds/reference",
    "timing_s/adv": "seconds/advantages",
    "timing_s/update_actor": "seconds/update",
    "timing_s/update_weights": "seconds/sync",
    "timing_s/save_checkpoint": "seconds/checkpoint",
}
"""verl's name -> ours (profiles/metrics.py)."""
GB = 1 << 30
BYTES: Mapping[str, str] = {
    "actor/perf/max_memory_allocated_gb": "memory/train/allocated",
    "actor/perf/max_memory_reserved_gb": "memory/train/reserved",
    "actor/perf/cpu_memory_used_gb": "memory/train/host",
}


@dataclass(frozen=True)
class Line:
    step: int
    data: Mapping[str, float]


def steps(tail: Tail) -> Iterator[Line]:
    """What came since the last call. A line that is no record of a step is passed over."""
    for raw in tail.lines():
        if (line := _parsed(raw)) is not None:
            yield line


def _parsed(raw: bytes) -> Line | None:
    try:
        found = json.loads(raw)
        numbers = {name: float(one) for name, one in found["data"].items() if isinstance(one, int | float)}
        return Line(int(found["step"]), numbers)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def step_metrics(profile: Profile, data: Mapping[str, float]) -> dict[str, float]:
    """Of one step, by our names; what is not finite is left out, as JSON has no word for it."""
    finite = {name: value for name, value in data.items() if isfinite(value)}
    found = {NAMES[name]: value for name, value in finite.items() if name in NAMES}
    found |= {BYTES[name]: value * GB for name, value in finite.items() if name in BYTES}
    rollouts = profile.grpo.groups_per_step * profile.grpo.group_size
    found["tokens"] = round(rollouts * found.get("tokens_mean", 0.0))
    if "reward" in found:
        found["accuracy"] = found["reward"]  # verl's worker pays for right answers alone
    if "clip_high" in found or "clip_low" in found:
        found["clip_fraction"] = found.get("clip_high", 0.0) + found.get("clip_low", 0.0)
    for name, part in (("tokens_per_s", "seconds/rollout"), ("train_tokens_per_s", "seconds/update")):
        if found.get(part):
            found[name] = found["tokens"] / found[part]
    return found
