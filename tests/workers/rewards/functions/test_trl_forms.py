"""Reward functions as TRL documents them for GRPOTrainer run unchanged. Read against TRL 1.16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workers.rewards.functions.running import call, outcomes, running

# In the forms of TRL's page on GRPO, each written anew: by length, a format by regex, a column with the answer, chat
# messages, one of several tasks, a coroutine, the trainer's state, the two loggers.
SOURCE = r'''
import asyncio
import re

def by_length(completion_ids, **kwargs):
    """Longer completions earn more."""
    return [float(len(ids)) for ids in completion_ids]

def in_format(completions, **kwargs):
    pattern = r"^<think>.*?</think>\s*<answer>.*?</answer>$"
    return [1.0 if re.match(pattern, one[0]["content"], re.DOTALL) else 0.0 for one in completions]

def is_accurate(prompts, completions, ground_truth, **kwargs):
    found = [re.search(r"\\boxed\{(.*?)\}", one) for one in completions]
    return [1.0 if match and match.group(1) == truth else 0.0 for match, truth in zip(found, ground_truth)]

def of_maths(prompts, completions, task, **kwargs):
    return [None if one != "maths" else 1.0 if "4" in text else -1.0 for text, one in zip(completions, task)]

async def of_service(prompts, completions, **kwargs):
    async def ask(text):
        await asyncio.sleep(0.01)
        return len(set(text)) / 10
    return await asyncio.gather(*(ask(text) for text in completions))

def scheduled(completions, trainer_state, **kwargs):
    return [min(1.0, trainer_state.global_step / 100)] * len(completions)

def logged(completions, answer, log_extra=None, log_metric=None, **kwargs):
    right = [one == truth for one, truth in zip(completions, answer)]
    if log_extra:
        log_extra("right", [str(one) for one in right])
    if log_metric:
        log_metric("share", sum(right) / len(right))
    return [float(one) for one in right]

def everything(**kwargs):
    names = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "task"}
    assert set(kwargs) == names | {"answer"}, sorted(kwargs)
    return [0.5 for _ in kwargs["completions"]]
'''
NAMES = (
    "by_length",
    "in_format",
    "is_accurate",
    "of_maths",
    "of_service",
    "scheduled",
    "logged",
    "everything",
)
CHAT = [{"role": "user", "content": "2+2="}]
FORMED = "<think>two and two</think> <answer>4</answer>"


def test_functions_in_the_documented_forms_run_unchanged(tmp_path: Path) -> None:
    calls: list[tuple[str, Any, list[dict[str, float]]]] = [
        ("by_length", call(0, "4", "5"), [{"by_length": 3.0}] * 2),
        ("in_format", call(1, FORMED, "4", messages=CHAT), [{"in_format": 1.0}, {"in_format": 0.0}]),
        (
            "is_accurate",
            call(2, r"\boxed{4}", r"\boxed{5}", columns={"ground_truth": "4"}),
            [{"is_accurate": 1.0}, {"is_accurate": 0.0}],
        ),
        ("of_maths", call(3, "4", "5", columns={"task": "maths"}), [{"of_maths": 1.0}, {"of_maths": -1.0}]),
        ("of another task", call(3, "4", "5", columns={"task": "code"}), [{"of_maths": 0.0}] * 2),
        ("of_service", call(4, "4", "45"), [{"of_service": 0.1}, {"of_service": 0.2}]),
        ("scheduled", call(5, "4", state={"global_step": 25}), [{"scheduled": 0.25}]),
        (
            "logged",
            call(6, "4", "5"),
            [{"logged": 1.0, "logged/share": 0.5}, {"logged": 0.0, "logged/share": 0.5}],
        ),
        # As TRL does, without `prompt` and `completion`, which the lists have.
        (
            "everything",
            call(7, "4", columns={"task": "maths", "prompt": "2+2=", "completion": "4"}),
            [{"everything": 0.5}],
        ),
    ]
    with running(tmp_path, SOURCE, *NAMES) as runner:
        runner.check_columns(["ground_truth", "task"])
        found = outcomes(runner, [one for _, one, _ in calls])
    assert dict(zip((name for name, _, _ in calls), found, strict=True)) == {
        name: [{key: pytest.approx(value) for key, value in one.items()} for one in values] for name, _, values in calls
    }
