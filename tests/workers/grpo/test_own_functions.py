"""A user's functions in a run: trained on by their weights, counted by name, never a reward of 0 where they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiles.errors import ExitCode
from profiles.grpo import Reward
from profiles.metrics import metric_of
from profiles.schema import Profile
from tests.workers import harness as h
from tests.workers.grpo.small import sums, write_problems
from tests.workers.grpo.test_grpo_worker import metrics_of, plain_profile
from tests.workers.test_azr_worker import checkpoint_of, forget_everything
from workers.contract import Outcome, Result
from workers.control import Control
from workers.grpo.kind import job
from workers.runtime import carry_out

FUNCTIONS = """
def even(problem, completion, facts):
    return {"length": float(len(completion) % 2 == 0), "answer": -0.5 * (problem.answer in completion)}

def longest(prompts, completions, completion_ids, **columns):
    return [float(ids[0] == max(one[0] for one in completion_ids)) for ids in completion_ids]

def wants(prompts, completions, colour):
    return [1.0 for _ in completions]

def breaks(problem, completion, facts):
    if len(completion) % 2:
        raise KeyError("odd")
    return 1.0
"""


NAMES = {"reward/NAME", "reward/NAME/PART"}


def trained(folder: Path, rewards: tuple[str, ...], weights: tuple[float, ...] = (), **reward: Any) -> Result:
    """One cycle of three steps, after the first checkpoint."""
    (folder / "mine.py").write_text(FUNCTIONS)
    profile: Profile = plain_profile(write_problems(folder / "sums.jsonl", sums(12)))
    grpo = msgspec.structs.replace(
        profile.grpo,
        rewards=tuple(f"{folder}/mine.py:{name}" for name in rewards),
        reward_weights=weights,
        reward=Reward(**reward),
    )
    profile = msgspec.structs.replace(profile, grpo=grpo)
    root, head = folder / "run", None
    root.mkdir()
    for cycle, end in ((0, 1), (1, 4)):
        forget_everything()
        spec = h.make_spec(root, profile, head=head, end_step=end, cycle=cycle)
        carry_out(spec, Control(None, spec.token), job(spec))
        result = h.result_of(spec)
        if result.outcome is not Outcome.DONE:
            break
        head = checkpoint_of(result)
    return result


def test_functions_of_both_forms_are_trained_on_by_their_weights(tmp_path: Path) -> None:
    result = trained(tmp_path, ("even", "longest"), (1.0, 0.5))
    assert result.outcome is Outcome.DONE, result.error
    steps = metrics_of(tmp_path / "run")
    assert len(steps) == 3
    for step in steps:
        assert step["reward"] == pytest.approx(step["reward/even"] + 0.5 * step["reward/longest"])
        assert {metric_of(name).name for name in step if name.startswith("reward/even")} == NAMES
        assert step["reward/even"] == pytest.approx(step["reward/even/length"] + step["reward/even/answer"])
    assert any(not step["update_skipped"] for step in steps)


def test_a_rollout_whose_function_fails_is_left_out_if_the_profile_says_so(tmp_path: Path) -> None:
    result = trained(tmp_path, ("breaks",), on_error="skip")
    assert result.outcome is Outcome.DONE, result.error
    steps = metrics_of(tmp_path / "run")
    assert any(step["rollouts_not_judged"] > 0 for step in steps)
    assert all(step["reward/breaks"] == 1.0 for step in steps if "reward/breaks" in step), "no failure counts as 0"
    warnings = [one.data["text"] for one in h.events_at(tmp_path / "run/cycles/0001/attempt-1", "warning")]
    assert any("mine.py:breaks failed on row" in text and "KeyError: 'odd'" in text for text in warnings)


def test_a_function_that_fails_ends_the_run_with_its_name_and_its_row(tmp_path: Path) -> None:
    result = trained(tmp_path, ("breaks",))
    assert result.exit_code == ExitCode.REWARD
    assert "mine.py:breaks failed on row" in result.error and "KeyError: 'odd'" in result.error


def test_a_function_that_is_not_there_or_needs_a_column_that_is_not_is_refused_before_a_rollout(tmp_path: Path) -> None:
    for name, said in (("nowhere", "nowhere"), ("wants", "`colour`")):
        (folder := tmp_path / name).mkdir()
        result = trained(folder, (name,))
        assert result.exit_code == ExitCode.INPUT and said in result.error
