"""Compares the log-probs of engine and trainer, which must compute the same function."""

from __future__ import annotations

from collections.abc import Mapping

from profiles.errors import ExitCode, LonghaulError
from profiles.mismatch import CAUSES, Bounds, judged_mean

OF_FRESH = ("mismatch_mean", "mismatch_max", "mismatch_kl")
"""Metrics that compare engine and trainer, which tokens of an older policy cannot."""


def warning_of(step: int, metrics: Mapping[str, float], bounds: Bounds) -> str:
    """A warning for the user; empty if rounding explains the mismatch. (pure)

    Raises LonghaulError (MISMATCH) above the second bound.
    """
    mean = judged_mean(metrics.get("mismatch_mean", 0.0), metrics.get("mismatch_tokens", 0.0))
    text = f"step {step}: the engine's log-probs differ from the trainer's by {mean:.2g} nats on average"
    if bounds.end and mean > bounds.end:
        raise LonghaulError(
            f"{text}, more than {bounds.end:g}; likely causes: {CAUSES}",
            kept="the head; the update of this step is dropped",
            next_command="python -m orchestrator run --set sampling.engine=hf   (or optimizer.mismatch_limit=0)",
            exit_code=ExitCode.MISMATCH,
        )
    return f"{text}, more than {bounds.warn:g}; likely causes: {CAUSES}" if mean > bounds.warn else ""
