"""Bounds for the difference between a rollout engine's log-probs and the trainer's, under the same weights. (pure)

Both compute the same function, so they may differ only by rounding. In float32 (unit roundoff 2^-24) the measured
difference is 1e-7 to 1e-6 nats. In bfloat16 (2^-8) a logit of 8 to 16 is rounded by up to .03, and the measured mean is
.008 to .021 over all engines (docs/engines.md); with NF4, which both compute in 16 bits, it is .019. vLLM rounds to its
own dtype. Where the trainer multiplies in 8 bits and the engine does not, random models of 2 to 24 layers are .014 to
.18 of the spread of their logits apart (on a CPU); with a spread of 3 that is .04 to .5.
"""

from __future__ import annotations

from typing import NamedTuple

from profiles.passes import engines_of
from profiles.schema import Profile

FEWEST_TOKENS = 64
"""A mean over fewer tokens is diluted to this number, so that one unlikely token cannot end a run."""
CAUSES = (
    "a model that this engine computes otherwise (try sampling.engine=hf), a checkpoint or rollouts of other weights, "
    "or a faulty GPU"
)


class Bounds(NamedTuple):
    """Bounds in nats for the mean over a step's tokens."""

    warn: float
    end: float


FLOAT32, ROUNDED, FP8 = Bounds(1e-4, 1e-2), Bounds(0.05, 0.25), Bounds(0.2, 0.6)


def bounds_of(profile: Profile, limit: float) -> Bounds:
    """limit: `optimizer.mismatch_limit`; below 0 the precision decides. `end` is 0 if the run never ends for it."""
    is_rounded = profile.model.dtype != "float32" or profile.model.quantization != "none"
    is_rounded |= "vllm" in engines_of(profile) and profile.vllm.dtype != "float32"
    bounds = FP8 if profile.model.fp8 else ROUNDED if is_rounded else FLOAT32
    return bounds if limit < 0 else bounds._replace(end=limit)


def judged_mean(mean: float, tokens: float) -> float:
    """The mean to compare with the bounds."""
    return mean * tokens / max(tokens, FEWEST_TOKENS)
