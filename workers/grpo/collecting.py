"""Collects one step's rollouts: draws problems, answers each with a group, judges, and redraws uniform groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Protocol

from profiles.schema import Profile
from workers.cycle.cursor import Place as CursorPlace
from workers.environments.episodes import Converser, Episodes
from workers.grpo.advantages import is_uniform, refill
from workers.grpo.judging import Judging
from workers.grpo.metrics import collected_metrics
from workers.grpo.order import Order
from workers.grpo.rows import Collected, Row
from workers.models.load import Tokenizer
from workers.problems.problem import Problem
from workers.rewards.coin import coin as tossed
from workers.rewards.earned import Slow, case_of, completion_of, earned
from workers.rewards.episode import Played
from workers.rewards.of_profile import GrpoRewards, grpo_rewards_of
from workers.rewards.reward import ProblemCase, Reward, Score, SlowReward
from workers.rewards.solved import is_solved
from workers.rewards.tests import PASSED
from workers.rng import derive, stream
from workers.rollout.engine import OnEnd, Request, Rollout, Sampling
from workers.suites.answer_format import VerbatimFormat
from workers.suites.prompts import prompt_of
from workers.verifiers.symbolic import Symbolic
from workers.verifiers.verify import sameness


class Streamer(Converser, Protocol):
    """A rank's engine, or that of all ranks together."""

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None = None
    ) -> list[Rollout]: ...


class Stages(Protocol):
    def __call__(self, name: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Asker:
    """Turns problems into judged rollouts. Stateless."""

    profile: Profile
    answer_format: VerbatimFormat
    tokenizer: Tokenizer
    engine: Streamer
    problems: Sequence[Problem]
    symbolic: Symbolic | None = None
    own: Sequence[Reward[ProblemCase]] = ()
    """Parts of the reward in addition to those of the profile."""
    slow: Sequence[SlowReward] = ()
    """Parts of the profile's reward that take time."""
    episodes: Episodes | None = None
    """For rollouts of several turns."""

    @cached_property
    def rewards(self) -> GrpoRewards:
        return grpo_rewards_of(self.profile.grpo, self.slow)

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        return self.tokenizer.encode_prompt(prompt_of(self.answer_format, problem))

    def sampling(self, max_new_tokens: int) -> Sampling:
        return Sampling(
            temperature=self.profile.sampling.temperature,
            max_new_tokens=max_new_tokens,
            stop=self.answer_format.stop,
            entropies=self.profile.grpo.entropy_mask != "off",
        )

    def rollouts(
        self, problems: Sequence[int], seeds: Callable[[int, int], int], count: int, on_end: OnEnd | None = None
    ) -> list[list[Rollout]]:
        """`count` rollouts of each problem. seeds: (index in `problems`, sample) -> seed of that rollout.

        on_end: told each rollout when it ends; its number is index * count + sample.
        """
        how = self.sampling(self.profile.sampling.max_completion_tokens)
        if self.episodes is not None:
            rows = [(one.line, one.row) for number in problems for one in [self.problems[number]] * count]
            drawn = [seeds(place, k) for place in range(len(problems)) for k in range(count)]
            played = self.episodes.play(self.engine, rows, drawn, how, on_end)
            return [[*played[place * count : (place + 1) * count]] for place in range(len(problems))]
        prompts = [self.prompt_ids(self.problems[number]) for number in problems]
        requests = [Request(ids, seeds(place, k)) for place, ids in enumerate(prompts) for k in range(count)]
        found = self.engine.generate(requests, how, on_end)
        return [found[place * count : (place + 1) * count] for place in range(len(prompts))]

    def text_of(self, rollout: Rollout) -> str:
        """The completion without its final stop token, which is not part of an answer; of an episode, the last
        reply."""
        return completion_of(self.tokenizer, rollout)

    def case(self, problem: int, rollout: Rollout) -> ProblemCase:
        """The rollout and its verdict."""
        text = self.answer_format.whole(self.text_of(rollout))  # as a validation reads it
        longest = self.profile.sampling.max_completion_tokens
        return case_of(self.profile.grpo, self.problems[problem], text, rollout, longest, self.symbolic)

    def sameness(self, problem: int) -> Callable[[str, str], bool]:
        """A function that tells whether two answers to the problem are the same by the verifier's rules."""
        return sameness(self.problems[problem].gold, self.symbolic)

    def row(self, group: int, problem: int, case: ProblemCase, slow: Slow, coin: Random) -> Row:
        """slow: what the slow parts found for it."""
        found = earned(self.rewards, case, slow, self.own)
        is_correct = self._is_correct(case, slow, found)
        if self.profile.grpo.variants.random_rewards:
            found = tossed(found, coin)
        rollout = case.rollout
        return Row(
            group=group,
            problem=problem,
            prompt_ids=rollout.prompt_ids,
            completion_ids=rollout.completion_ids,
            log_probs=rollout.known_log_probs,
            entropies=rollout.entropies if rollout.is_finite else (),
            finish_reason=rollout.finish_reason,
            reward=found.total,
            is_correct=is_correct,
            is_answered=not case.problem.gold or case.verdict.extracted is not None,
            parts=dict(found.parts),
            failure=(rollout.failure if isinstance(rollout, Played) else "") or slow.failure,
            is_finite=rollout.is_finite,
            is_own=rollout.is_own,
            turns=rollout.turns if isinstance(rollout, Played) else 1,
        )

    def rows(self, step: int, group: int, problem: int, judged: Sequence[tuple[ProblemCase, Slow]]) -> list[Row]:
        """Of a whole group, as `Judging` found it in `step`."""
        coin = stream(self.profile.run.seed, step, f"random rewards {group}")
        return [self.row(group, problem, case, slow, coin) for case, slow in judged]

    def _is_correct(self, case: ProblemCase, slow: Slow, found: Score) -> bool:
        """By its answer or its tests if the row has any, else by the whole reward."""
        if case.problem.has_tests:
            return slow.values.get(PASSED) == 1.0
        if case.problem.gold:
            return case.verdict.correct
        return not slow.failure and is_solved(self.profile.grpo, case.problem, found)


def collect(asker: Asker, order: Order, step: int, stage: Stages) -> Collected:
    """The groups of `step`, with redraws for uniform ones if the profile asks for them. Changes nothing.

    Each rollout's seed depends on (run seed, step, draw, sample). Raises Exhausted if no problem is left.
    """
    grpo, seed = asker.profile.grpo, asker.profile.run.seed
    rows: list[Row] = []
    groups: list[list[Row]] = []
    wanted, rounds = grpo.groups_per_step, 0
    while True:
        numbers, place = order.peek(wanted)
        first, fresh = len(groups), numbers[len(groups) :]

        def seeds(at: int, sample: int, first: int = first) -> int:
            return derive(seed, step, f"rollout {first + at}", sample)

        with Judging(asker.case, asker.slow, fresh, grpo.group_size, grpo.reward.on_error) as judging:
            with stage("rollout"):
                answers = asker.rollouts(fresh, seeds, grpo.group_size, judging.on_end) if fresh else []
            with stage("judge"):
                for number, group in zip(fresh, judging.found(answers), strict=True):
                    groups.append(asker.rows(step, len(groups), number, group))
                    rows += groups[-1]
        # The file has no further problems: train on what is there.
        left = refill([is_group_uniform(group) for group in groups], grpo, rounds if fresh else grpo.max_extra_rounds)
        if not left.draw:
            break
        wanted, rounds = len(groups) + left.draw, rounds + 1
    uniform = [number for number, group in enumerate(groups) if is_group_uniform(group)]
    return Collected(
        rows=rows,
        train=left.train,
        rounds=rounds,
        metrics=collected_metrics(rows, uniform, rounds),
        cursor=place if isinstance(place, CursorPlace) else None,
        stage=None if isinstance(place, CursorPlace) else place,
    )


def is_group_uniform(group: Sequence[Row]) -> bool:
    """Compares only the rollouts that can be compared; fewer than two count as uniform."""
    rewards = [row.reward for row in group if row.is_usable]
    return len(rewards) < 2 or is_uniform(rewards)
