"""Held-out rows that the run's own reward judges: what is solved, what is stored, and what a failing part does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.grpo import Reward
from profiles.metrics import metric_of
from profiles.schema import Data, Grpo, Profile, Validation
from tests.workers import harness as h
from tests.workers.grpo.small import sums, write_problems
from tests.workers.grpo.test_grpo_worker import plain_profile, trained
from tests.workers.test_azr_worker import checkpoint_of, forget_everything
from tests.workers.torch_settings import torch_as_it_was
from workers.contract import CheckpointRef, Outcome, Result
from workers.control import Control
from workers.cycle.validate import mean_over_tasks
from workers.grpo.kind import job
from workers.models import random_init
from workers.problems.problem import Problem
from workers.rewards.reward import Score
from workers.rewards.solved import is_solved, least_total
from workers.rollout.engine import Rollout
from workers.runtime import carry_out
from workers.suites.answer_format import PlainFormat, VerbatimFormat
from workers.suites.registry import load_suites
from workers.suites.run_reward import Earned, RunReward, opened

FUNCTIONS = """
def long(problem, completion, facts):
    return {"size": facts["tokens"] / 8, "step": 0 * facts["tokens"]}

def half(prompts, completions, colour, trainer_state, **columns):
    return [0.5 if one == "red" else 0.25 for one in colour]

def breaks(problem, completion, facts):
    raise KeyError(problem.colour)
"""
TODAY = {"n", "correct", "accuracy", "low", "high", "sampled_accuracy", "worked_share", "mean_tokens", "malformed"}


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        yield


class Place:
    """A checkpoint of a tiny model, rows with and without answers, and functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "mine.py").write_text(FUNCTIONS)
        self.answers = write_problems(folder / "sums.jsonl", sums(40))
        colours = [{"prompt": f"{n}?", "colour": ("red", "blue")[n % 2]} for n in range(40)]
        self.rows = write_problems(folder / "rows.jsonl", colours)
        self.head: CheckpointRef = checkpoint_of(trained(folder / "run", plain_profile(self.answers)))
        self.attempts = 0

    def profile(self, *rewards: str, rows: Path | None = None, **reward: Any) -> Profile:
        names = tuple(f"{self.folder}/mine.py:{one}" if one in FUNCTIONS else one for one in rewards)
        profile = plain_profile(self.answers)
        return msgspec.structs.replace(
            profile,
            data=Data(tasks=str(rows or self.rows), held_out=0.3),
            grpo=Grpo(rewards=names, reward=Reward(**reward)),
            validation=Validation(suites=("held-out",), examples_per_task=0),
        )

    def validated(self, profile: Profile) -> tuple[Result, list[str]]:
        """The result, and warnings."""
        forget_everything()
        self.attempts += 1
        root = self.folder / "run"
        spec = h.make_spec(root, profile, head=self.head, end_step=9, role="validate", attempt=self.attempts)
        carry_out(spec, Control(None, spec.token), job(spec))
        return h.result_of(spec), [event.data["text"] for event in h.events_of(spec, "warning")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("held-out"))


def test_rows_without_answers_are_solved_by_the_reward_of_a_function(place: Place) -> None:
    result, warnings = place.validated(place.profile("half", solved_at=0.5))
    assert result.outcome is Outcome.DONE, result.error
    own, mean = result.validation["held-out"]["own"], result.validation["held-out"]["mean"]
    assert own.keys() == TODAY | {"mean_reward", "sampled_reward", "not_judged"} and not warnings
    assert 0 < own["accuracy"] < 1, "the red rows are solved, the blue ones are not"
    assert own["mean_reward"] == pytest.approx(0.25 + 0.25 * own["accuracy"]) == mean["mean_reward"]
    assert own["sampled_reward"] == own["mean_reward"] and own["not_judged"] == 0 and own["malformed"] == 0
    answers = result.answers["held-out"]["own"]
    assert answers.greedy == answers.sampled and answers.greedy.count("1") == own["correct"] == mean["correct"]
    assert own["low"] < own["accuracy"] < own["high"]
    assert [metric_of(name).name for name in ("mean_reward", "sampled_reward", "not_judged")]


def test_rows_with_tests_are_listed_as_code_and_judged_in_the_sandbox(place: Place) -> None:
    tested = [{"prompt": f"{n}?", "tests": ["assert f(1) == 1"]} for n in range(20)]
    profile = place.profile("tests", rows=write_problems(place.folder / "tested.jsonl", tested))
    result, warnings = place.validated(profile)
    assert result.outcome is Outcome.DONE, result.error
    code = result.validation["held-out"]["code"]
    assert result.validation["held-out"].keys() == {"code", "mean"} and not warnings
    assert (code["accuracy"], code["mean_reward"], code["not_judged"], code["malformed"]) == (0, 0, 0, 1)


def test_a_function_that_never_gives_enough_is_said(place: Place) -> None:
    result, warnings = place.validated(place.profile("half"))
    assert result.validation["held-out"]["own"]["correct"] == 0
    assert any("at most 0.5, and 1 is needed; grpo.reward.solved_at" in text for text in warnings)


def test_a_function_that_fails_ends_the_validation_or_leaves_its_rows_unsolved(place: Place) -> None:
    result, _ = place.validated(place.profile("breaks"))
    assert result.exit_code == ExitCode.REWARD and "mine.py:breaks failed on row" in result.error
    result, warnings = place.validated(place.profile("breaks", "long", on_error="skip"))
    assert result.outcome is Outcome.DONE, result.error
    own = result.validation["held-out"]["own"]
    assert own["accuracy"] == 0 and own["not_judged"] == 2 * own["n"] and "mean_reward" not in own
    assert any("have no reward and count as not solved" in text and "KeyError" in text for text in warnings)


def test_answers_are_compared_as_ever_if_nothing_but_a_right_answer_is_rewarded(place: Place) -> None:
    result, warnings = place.validated(place.profile("correct", rows=place.answers))
    assert result.outcome is Outcome.DONE, result.error
    assert result.validation["held-out"]["maths"].keys() == TODAY and not warnings
    assert result.validation["held-out"].keys() == {"maths", "mean"}
    assert result.validation["held-out"]["mean"].keys() == {
        "n", "correct", "low", "high", "accuracy", "sampled_accuracy",
    }  # fmt: skip
    (suite,) = load_suites(["held-out"], None, 0, profile=place.profile("correct", rows=place.answers))
    assert not suite.is_rewarded and all(one.kind == one.task == "maths" for one in suite.questions)
    assert suite.fingerprint(VerbatimFormat()) == "d4929cabbf1c5915", "files of answers stay valid"


def test_another_reward_makes_other_questions_so_that_no_two_validations_pair_them(place: Place) -> None:
    def names(profile: Profile) -> set[str]:
        (suite,) = load_suites(["held-out"], None, 0, profile=profile)
        return {one.content_name for one in suite.questions}

    profile = place.profile("half")
    first = names(profile)
    assert first == names(place.profile("half", timeout_s=7.0))
    assert first.isdisjoint(names(place.profile("half", solved_at=0.5)))
    (place.folder / "mine.py").write_text(FUNCTIONS + "\n# another\n")
    assert first.isdisjoint(names(profile))


# --- what rollouts earn -----------------------------------------------------------------------------------------------


class Bytes:
    def __init__(self) -> None:
        self._backend = random_init.byte_tokenizer()

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Any) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


def judged(grpo: Grpo, problem: Problem, *texts: str, folder: Path, longest: int = 400) -> list[Earned]:
    tokenizer = Bytes()
    profile = Profile(name="t", grpo=grpo)
    with opened(profile, folder, lambda: 0) as reward:
        rollouts = [Rollout((1,), tokenizer.ids(text), (), "length") for text in texts]
        (found,) = reward.judge([problem], [rollouts], VerbatimFormat(), tokenizer, longest)
    return found


def test_programs_are_judged_by_the_tests_of_their_row(tmp_path: Path) -> None:
    tests = json.dumps(["assert f(2) == 4", "assert f(3) == 9"])
    problem = Problem(0, 1, "Square it.", tests, has_tests=True)
    right, half = "```python\ndef f(x): return x * x\n```", "```python\ndef f(x): return 4\n```"
    grpo = Grpo(rewards=("tests",), reward=Reward(options={"tests": {"partial": True}}))
    found = judged(grpo, problem, right, half, "no program", folder=tmp_path)
    assert [one.reward for one in found] == [1.0, 0.5, 0.0]
    assert [one.is_solved for one in found] == [True, False, False]
    assert [one.is_answered for one in found] == [True, True, False]


def test_a_prompt_style_of_another_than_the_runs_is_refused() -> None:
    with pytest.raises(LonghaulError, match="not in the style plain") as caught:
        RunReward(Profile(name="t")).judge([], [], PlainFormat(), Bytes(), 8)
    assert caught.value.exit_code == ExitCode.INPUT


ANSWERED = Problem(0, 1, "?", "7")
TESTED = Problem(0, 1, "?", "[]", has_tests=True)
OPEN = Problem(0, 1, "?", "")


@pytest.mark.parametrize(
    ("rewards", "weights", "problem", "least"),
    [
        (("correct", "format"), (1.0, 0.1), ANSWERED, 1.1),
        (("correct", "length", "overlong"), (), ANSWERED, 1.0),
        (("cosine",), (), ANSWERED, 0.5),
        (("correct", "tests"), (), TESTED, 1.0),
        (("correct", "tests"), (), ANSWERED, 1.0),
        (("my.py:f",), (0.5,), OPEN, 0.5),
        (("my.py:f", "format"), (), OPEN, 2.0),
        (("exact", "language"), (1.0, -1.0), ANSWERED, 1.0),
        (("repetition",), (), OPEN, 0.0),
    ],
)
def test_full_is_what_the_parts_that_apply_can_give_without_penalties(
    rewards: tuple[str, ...], weights: tuple[float, ...], problem: Problem, least: float
) -> None:
    assert least_total(Grpo(rewards=rewards, reward_weights=weights), problem) == pytest.approx(least)


def test_penalties_never_decide_but_where_a_number_is_given() -> None:
    grpo = Grpo(rewards=("correct", "format", "length"), reward_weights=(0.1, 0.2, 1.0))
    found = Score(0.1 + 0.2 - 0.9, {"correct": 1.0, "format": 1.0, "length": -0.9})
    assert is_solved(grpo, ANSWERED, found)
    assert not is_solved(grpo, ANSWERED, Score(0.1, {"correct": 1.0, "format": 0.0, "length": 0.0}))
    at = msgspec.structs.replace(grpo, reward=Reward(solved_at=0.3))
    assert not is_solved(at, ANSWERED, found) and is_solved(at, ANSWERED, Score(0.1 + 0.1 + 0.1, {}))


def test_the_mean_of_rewards_is_over_tasks_that_have_some() -> None:
    task = {"n": 1.0, "correct": 1.0, "accuracy": 1.0, "sampled_accuracy": 1.0}
    assert mean_over_tasks({"a": task, "b": task | {"mean_reward": 0.5}})["mean_reward"] == 0.5
