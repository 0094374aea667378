"""The parts of a run's reward that take time, with the processes that compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from profiles.rewards import TESTS, is_function
from profiles.schema import Profile
from workers.rewards.functions.part import FunctionPart
from workers.rewards.functions.runner import FunctionRunner
from workers.rewards.registry import part_of
from workers.rewards.reward import SlowReward


@contextmanager
def slow_rewards(profile: Profile, folder: Path, step: Callable[[], int]) -> Iterator[list[SlowReward]]:
    """Inside, the parts of `grpo.rewards` that are not computed at once.

    folder: for the functions' log and failed calls. step: what functions are told as `global_step`. Raises
    LonghaulError (INPUT) for a function that cannot be imported, and for options that a part does not take.
    """
    grpo = profile.grpo
    functions = [name for name in grpo.rewards if is_function(name)]

    def state() -> dict[str, Any]:
        return {"global_step": step()}

    found: list[SlowReward] = []
    with ExitStack() as opened:
        if TESTS in grpo.rewards:
            part = part_of(TESTS, grpo.reward.options.get(TESTS, {}))
            found.append(opened.enter_context(part.judge(profile.sandbox)))
        if functions:
            runner = opened.enter_context(FunctionRunner(functions, grpo.reward, folder))
            found += [FunctionPart(runner, number, state) for number in range(len(functions))]
        yield found
