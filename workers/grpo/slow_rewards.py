"""The parts of a run's reward that take time, with the processes that compute them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from profiles.rewards import TESTS, is_function
from workers.rewards.functions.part import FunctionPart
from workers.rewards.functions.runner import FunctionRunner
from workers.rewards.registry import part_of
from workers.rewards.reward import SlowReward
from workers.runtime import Attempt


@contextmanager
def slow_rewards(attempt: Attempt) -> Iterator[list[SlowReward]]:
    """Inside, the parts of `grpo.rewards` that are not computed at once. Raises LonghaulError (INPUT) for a function
    that cannot be imported, and for options that a part does not take."""
    grpo = attempt.profile.grpo
    functions = [name for name in grpo.rewards if is_function(name)]

    def state() -> dict[str, Any]:
        return {"global_step": attempt.step}

    found: list[SlowReward] = []
    with ExitStack() as opened:
        if TESTS in grpo.rewards:
            part = part_of(TESTS, grpo.reward.options.get(TESTS, {}))
            found.append(opened.enter_context(part.judge(attempt.profile.sandbox)))
        if functions:
            runner = opened.enter_context(FunctionRunner(functions, grpo.reward, attempt.dir.path))
            found += [FunctionPart(runner, number, state) for number in range(len(functions))]
        yield found
