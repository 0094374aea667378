"""Engine and trainer must compute one function: what a step's mismatch says about that."""

from __future__ import annotations

from collections.abc import Mapping

from profiles.errors import ExitCode, LonghaulError
from profiles.mismatch import CAUSES, Bounds, judged_mean


def warning_of(step: int, metrics: Mapping[str, float], bounds: Bounds) -> str:
    """What a person should know; empty: rounding explains it. (pure)

    Raises LonghaulError (MISMATCH) beyond the second bound.
    """
    mean = judged_mean(metrics.get("mismatch_mean", 0.0), metrics.get("mismatch_tokens", 0.0))
    said = f"step {step}: the engine's log-probs are {mean:.2g} nats off the trainer's in the mean"
    if bounds.end and mean > bounds.end:
        raise LonghaulError(
            f"{said}, more than {bounds.end:g}; likely causes: {CAUSES}",
            kept="the head; the update of this step is dropped",
            next_command="python -m orchestrator run --set sampling.engine=hf   (or optimizer.mismatch_limit=0)",
            exit_code=ExitCode.MISMATCH,
        )
    return f"{said}, more than {bounds.warn:g}; likely causes: {CAUSES}" if mean > bounds.warn else ""
