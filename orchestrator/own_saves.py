"""When a worker that writes checkpoints at steps of its own writes the next one, in words. (pure)"""

from __future__ import annotations

from orchestrator.display.wording import duration
from profiles.schema import Run


def next_save(run: Run, step: int, end_step: int) -> int:
    """The first step after `step` that it saves. end_step: one past the last step of the cycle, which is always
    saved."""
    return min(step - step % run.checkpoint_every + run.checkpoint_every, end_step - 1)


def due(run: Run, step: int, end_step: int, step_s: float) -> str:
    """`that of step 40, in 3 steps, about 9 m 30 s`. step_s: seconds of a step; 0: not known yet."""
    at = next_save(run, step, end_step)
    left = max(0, at - step)
    when = f", about {duration(left * step_s)}" if step_s else "; no step has been timed yet"
    return f"that of step {at}, in {left} step{'s' * (left != 1)}{when}"
