"""What a rollout of GRPO earns: the same in training, in validation and in `evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

from profiles.errors import LonghaulError
from profiles.rewards import TESTS
from profiles.schema import Grpo
from workers.problems.problem import Problem
from workers.rewards.episode import Played
from workers.rewards.of_profile import GrpoRewards
from workers.rewards.reward import Case, ProblemCase, Reward, Score, score
from workers.rewards.tests import program_in
from workers.rollout.engine import Rollout
from workers.verifiers.answers import is_formatted
from workers.verifiers.symbolic import Symbolic
from workers.verifiers.verify import Verdict, judge


@dataclass(frozen=True)
class Slow:
    """What the slow parts found for a rollout. values: by part. failure: why one could not be computed; empty: none."""

    values: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


class Decoder(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


def completion_of(tokenizer: Decoder, rollout: Rollout) -> str:
    """The completion without its final stop token, which is not part of an answer; of an episode, the last reply."""
    if isinstance(rollout, Played):
        return rollout.reply
    ids = rollout.completion_ids
    return tokenizer.decode(ids[:-1] if rollout.finish_reason == "stop" else ids)


def case_of(
    grpo: Grpo, problem: Problem, text: str, rollout: Rollout, longest: int, symbolic: Symbolic | None
) -> ProblemCase:
    """The rollout and its verdict. text: the completion, with any part of it that the prompt holds. longest: tokens of
    a completion at most. (pure)"""
    is_cut = rollout.finish_reason == "length"
    verdict = (
        Verdict(False, program_in(text, grpo.reward.options.get(TESTS, {}).get("after", "")), "judged by its tests")
        if problem.has_tests
        else judge(problem.gold, text, truncated=is_cut, lenient=grpo.lenient_answers, symbolic=symbolic)
    )
    return Case(
        problem=problem,
        text=text,
        rollout=rollout,
        verdict=verdict,
        is_well_formed=is_formatted(text, truncated=is_cut),
        share=rollout.num_own / longest,
        label=f"problem {problem.number}",
        earned=rollout.earned if isinstance(rollout, Played) else 0.0,
        messages=rollout.messages if isinstance(rollout, Played) else (),
    )


def gathered(futures: Iterable[Future[Mapping[str, float]]], on_error: Literal["stop", "skip"]) -> Slow:
    """What the slow parts found for a rollout, once all are done. futures: of each part.

    Raises LonghaulError (REWARD) for a part that could not be computed, if `on_error` says so.
    """
    values: dict[str, float] = {}
    for future in futures:
        try:
            values |= future.result()
        except LonghaulError as error:
            if on_error == "stop":
                raise
            return Slow(failure=error.what)
    return Slow(values)


def earned(rewards: GrpoRewards, case: ProblemCase, slow: Slow, own: Sequence[Reward[ProblemCase]] = ()) -> Score:
    """The reward of a rollout with its parts. slow: what the slow parts found for it. own: parts in addition to those
    of the profile, each with weight 1."""
    weights = rewards.weights
    quick = (*rewards.parts, *own)
    found = score(case, quick, [weights.get(part.name, 1.0) for part in quick])
    if slow.failure:
        return Score(0.0, found.parts)
    total = found.total + sum(weights[part.name] * slow.values[part.name] for part in rewards.slow)
    return Score(total, {**found.parts, **slow.values})
