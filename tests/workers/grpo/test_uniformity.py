"""If no group teaches anything for many steps, the likely causes are printed."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.schema import Grpo
from workers.grpo.metrics import collected_metrics, facts_of
from workers.grpo.rows import Row
from workers.grpo.uniformity import StepFacts, all_uniform

GRPO = Grpo(uniform_patience=3, group_size=8)


def step(uniform: int = 2, **facts: Any) -> StepFacts:
    return StepFacts(groups=2, uniform=uniform, **facts)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        pytest.param({"truncated_share": 1.0, "unanswered_share": 1.0}, ["max_completion_tokens"], id="all are cut"),
        pytest.param({"unanswered_share": 0.95}, ["mark no answer"], id="no answer is marked"),
        pytest.param({"distinct_share": 1 / 8}, ["temperature"], id="all are the same"),
        pytest.param({"accuracy": 1.0}, ["every problem is solved"], id="too easy"),
        pytest.param({"accuracy": 1.0, "distinct_share": 1 / 8}, ["temperature", "is solved"], id="easy and the same"),
        pytest.param({"accuracy": 0.0}, ["no problem is ever solved"], id="too hard"),
        pytest.param({"accuracy": 0.5}, ["always or never solved"], id="some of each"),
    ],
)
def test_the_reasons_are_those_that_the_steps_show(facts: dict[str, Any], words: list[str]) -> None:
    found = all_uniform([step(**facts)] * 3, GRPO)
    assert found is not None
    assert [word in reason for word, reason in zip(words, found.reasons, strict=True)] == [True] * len(words)
    assert found.text.startswith("no group of the last 3 steps had different rewards: ")


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        pytest.param([], None, id="no step"),
        pytest.param([step()] * 2, None, id="fewer than the patience"),
        pytest.param([step(uniform=1)] + [step()] * 3, 3, id="counted since the last that taught"),
        pytest.param([step()] * 3 + [step(uniform=1)], None, id="a step that teaches ends it"),
        pytest.param([step()] * 2 + [step(uniform=1)] + [step()] * 2, None, id="two short times are no long one"),
        pytest.param([step()] * 9, 9, id="told again while it lasts"),
    ],
)
def test_it_is_found_after_steps_in_a_row(history: list[StepFacts], steps: int | None) -> None:
    found = all_uniform(history, GRPO)
    assert (found and found.steps) == steps


def test_what_is_paid_for_form_alone_solves_nothing() -> None:
    """Every answer is in its box and wrong: 1 for the form of each."""
    rows = [
        Row(group=number // 2, problem=0, prompt_ids=(1,), completion_ids=(number,), finish_reason="stop", reward=1.0,
            log_probs=(-1.0,), is_answered=True, parts={"format": 1.0})
        for number in range(4)
    ]  # fmt: skip
    found = all_uniform([facts_of(collected_metrics(rows, {0, 1}, 0))] * 3, GRPO)
    assert found is not None and "no problem is ever solved" in found.text
