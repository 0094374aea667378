"""The parts of a run's reward that take time, with the processes that compute them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from profiles.rewards import is_function
from workers.rewards.functions.part import FunctionPart
from workers.rewards.functions.runner import FunctionRunner
from workers.rewards.reward import SlowReward
from workers.runtime import Attempt


@contextmanager
def slow_rewards(attempt: Attempt) -> Iterator[list[SlowReward]]:
    """Inside, the parts of `grpo.rewards` that are not computed at once. Raises LonghaulError (INPUT) for a function
    that cannot be imported."""
    grpo = attempt.profile.grpo
    functions = [name for name in grpo.rewards if is_function(name)]
    if not functions:
        yield []
        return

    def state() -> dict[str, Any]:
        return {"global_step": attempt.step}

    with FunctionRunner(functions, grpo.reward, attempt.dir.path) as runner:
        yield [FunctionPart(runner, number, state) for number in range(len(functions))]
