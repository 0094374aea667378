"""Judges answers to a run's own rows by what the run's reward gives them, as its training does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.rewards import is_function
from profiles.schema import Profile
from workers.environments.episodes import Converser, Encoder, episodes_of
from workers.environments.of_profile import environment_of
from workers.problems.problem import Problem
from workers.rewards.earned import Decoder, Slow, case_of, completion_of, earned, gathered
from workers.rewards.episode import Played
from workers.rewards.of_profile import GrpoRewards, grpo_rewards_of
from workers.rewards.reward import ProblemCase, SlowReward
from workers.rewards.slow import slow_rewards
from workers.rewards.solved import is_solved, least_total
from workers.rollout.engine import Rollout, Sampling
from workers.suites.answer_format import AnswerFormat, as_trained
from workers.suites.scoring import Outcome, rewards_of
from workers.suites.suite import Suite
from workers.verifiers.symbolic import Symbolic
from workers.verifiers.verify import verifier_of

if TYPE_CHECKING:
    from workers.environments.runner import EnvironmentRunner


@dataclass(frozen=True)
class Earned:
    """reward: the total; None if a part of it could not be computed. failure: why; empty: all could."""

    reward: float | None
    is_solved: bool = False
    is_answered: bool = True
    """Whether a row with an answer or with tests got an answer."""
    failure: str = ""


@dataclass(frozen=True)
class RunReward:
    """The reward of a run, with the processes of its slow parts."""

    profile: Profile
    slow: Sequence[SlowReward] = ()
    environment: EnvironmentRunner | None = None
    """Plays the episodes that its part of the reward judges."""

    @cached_property
    def _rewards(self) -> GrpoRewards:
        return grpo_rewards_of(self.profile.grpo, self.slow)

    @cached_property
    def _symbolic(self) -> Symbolic | None:
        return verifier_of(self.profile.grpo)

    def play(
        self,
        engine: Converser,
        problems: Sequence[Problem],
        seeds: Sequence[int],
        sampling: Sampling,
        answer_format: AnswerFormat,
        tokenizer: Encoder,
    ) -> list[Played]:
        """An episode of each problem, in order. Raises like `judge`."""
        assert self.environment is not None
        episodes = episodes_of(self.profile, self.environment, as_trained(answer_format), tokenizer)
        return episodes.play(engine, [(one.line, one.row) for one in problems], seeds, sampling)

    def judge(
        self,
        problems: Sequence[Problem],
        rollouts: Sequence[Sequence[Rollout]],
        answer_format: AnswerFormat,
        tokenizer: Decoder,
        longest: int,
    ) -> list[list[Earned]]:
        """What each rollout of each problem earns, in order. longest: tokens of a completion at most.

        Raises LonghaulError: INPUT for an answer format that is not a run's, REWARD for a part that could not be
        computed, if the profile says so.
        """
        verbatim = as_trained(answer_format)
        cases = [
            [
                case_of(
                    self.profile.grpo,
                    problem,
                    verbatim.whole(completion_of(tokenizer, one)),
                    one,
                    longest,
                    self._symbolic,
                )
                for one in group
            ]
            for problem, group in zip(problems, rollouts, strict=True)
        ]
        found = [self._begin(group) for group in cases]  # all at once: slow parts work side by side
        return [
            [self._earned(case, futures) for case, futures in zip(group, begun, strict=True)]
            for group, begun in zip(cases, found, strict=True)
        ]

    def _begin(self, group: Sequence[ProblemCase]) -> list[list[Future[Mapping[str, float]]]]:
        """For each rollout of a problem, the futures of its slow parts."""
        begun = [part.submit(group) for part in self.slow]
        return [[futures[place] for futures in begun] for place in range(len(group))]

    def _earned(self, case: ProblemCase, futures: Sequence[Future[Mapping[str, float]]]) -> Earned:
        grpo, problem = self.profile.grpo, case.problem
        slow = gathered(futures, grpo.reward.on_error)
        if isinstance(case.rollout, Played) and case.rollout.failure:
            slow = Slow(failure=case.rollout.failure)
        is_answered = not problem.gold or case.verdict.extracted is not None
        if slow.failure:
            return Earned(None, is_answered=is_answered, failure=slow.failure)
        found = earned(self._rewards, case, slow)
        return Earned(found.total, is_solved(grpo, problem, found), is_answered)

    def never_solved(self, suite: Suite, outcomes: Sequence[Outcome]) -> str:
        """A warning if no question is solved, and only its author knows what the reward can give; else empty."""
        grpo, rewards = self.profile.grpo, rewards_of(outcomes)
        problems = [one.rewarded.problem for one in suite.questions if one.rewarded is not None]
        if not rewards or any(any(one.right) for one in outcomes) or not any(map(is_function, grpo.rewards)):
            return ""
        least, most = min(least_total(grpo, one) for one in problems), max(rewards)
        return (
            f"no answer to the suite {suite.name} is solved: their rewards are at most {most:.4g}, and "
            f"{least:.4g} is needed; grpo.reward.solved_at says what counts (docs/rewards.md)"
        )


@contextmanager
def opened(profile: Profile, folder: Path, step: Callable[[], int]) -> Iterator[RunReward]:
    """The reward of the profile's run. Arguments and errors as of `slow_rewards`."""
    with slow_rewards(profile, folder, step) as slow, environment_of(profile, folder) as environment:
        yield RunReward(profile, slow, environment)
