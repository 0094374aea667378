"""The rollouts of one step: problems drawn, each answered by a group, answers judged, uniform groups drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Protocol

from profiles.schema import Profile
from workers.cycle.cursor import Place as CursorPlace
from workers.grpo.advantages import is_uniform, refill
from workers.grpo.metrics import collected_metrics
from workers.grpo.order import Order
from workers.grpo.rows import Collected, Row
from workers.models.load import Tokenizer
from workers.problems.reader import Problem
from workers.rewards.coin import coin as tossed
from workers.rewards.of_profile import rewards_of
from workers.rewards.reward import Case, Reward, score
from workers.rng import derive, stream
from workers.rollout.engine import Request, Rollout, Sampling
from workers.suites.answer_format import AnswerFormat, VerbatimFormat
from workers.suites.asking import Completer
from workers.suites.question import WordProblem
from workers.verifiers.symbolic import Symbolic
from workers.verifiers.verify import judge, sameness


class Stages(Protocol):
    def __call__(self, name: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Asker:
    """All that turns a problem into judged rollouts; it holds no state."""

    profile: Profile
    answer_format: VerbatimFormat
    tokenizer: Tokenizer
    engine: Completer
    problems: Sequence[Problem]
    symbolic: Symbolic | None = None
    own: Sequence[Reward] = ()
    """Parts of the reward beside those of the profile."""

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        return self.tokenizer.encode(prompt_of(self.answer_format, text))

    def rollouts(self, problems: Sequence[int], seeds: Callable[[int, int], int], count: int) -> list[list[Rollout]]:
        """`count` rollouts of each problem. seeds: (place in `problems`, sample) -> root of that rollout's stream."""
        knobs = self.profile.sampling
        how = Sampling(
            temperature=knobs.temperature,
            max_new_tokens=knobs.max_completion_tokens,
            stop=self.answer_format.stop,
            entropies=self.profile.grpo.entropy_mask != "off",
        )
        prompts = [self.prompt_ids(self.problems[number].prompt) for number in problems]
        requests = [Request(ids, seeds(place, k)) for place, ids in enumerate(prompts) for k in range(count)]
        found = self.engine.generate(requests, how)
        return [found[place * count : (place + 1) * count] for place in range(len(prompts))]

    def text_of(self, rollout: Rollout) -> str:
        """Without the stop token that ended it, which is no part of an answer."""
        ids = rollout.completion_ids
        return self.tokenizer.decode(ids[:-1] if rollout.finish_reason == "stop" else ids)

    def case(self, problem: int, rollout: Rollout) -> Case:
        """The rollout with who is right."""
        asked, grpo = self.problems[problem], self.profile.grpo
        text = self.answer_format.whole(self.text_of(rollout))  # as a validation reads it
        is_cut, longest = rollout.finish_reason == "length", self.profile.sampling.max_completion_tokens
        verdict = judge(asked.gold, text, truncated=is_cut, lenient=grpo.lenient_answers, symbolic=self.symbolic)
        return Case(asked, text, rollout, verdict, len(rollout.completion_ids) / longest)

    def sameness(self, problem: int) -> Callable[[str, str], bool]:
        """Whether two answers to the problem are the same, as the verifier sees them."""
        return sameness(self.problems[problem].gold, self.symbolic)

    def judged(self, group: int, problem: int, rollout: Rollout, coin: Random) -> Row:
        case = self.case(problem, rollout)
        found = score(case, (*rewards_of(self.profile.grpo), *self.own))
        if self.profile.grpo.variants.random_rewards:
            found = tossed(found, coin)
        return Row(
            group=group,
            problem=problem,
            prompt_ids=rollout.prompt_ids,
            completion_ids=rollout.completion_ids,
            log_probs=rollout.known_log_probs,
            entropies=rollout.entropies if rollout.is_finite else (),
            finish_reason=rollout.finish_reason,
            reward=found.total,
            is_correct=case.verdict.correct,
            is_answered=case.verdict.extracted is not None,
            format_reward=found.parts["format"],
            length_penalty=-found.parts["length"],
            own_rewards={part.name: found.parts[part.name] for part in self.own},
            is_finite=rollout.is_finite,
        )


def prompt_of(answer_format: AnswerFormat, text: str) -> str:
    """The prompt of a problem. Who is right is the verifier's business, so the answer format gets none."""
    return answer_format.ask("maths", WordProblem(text.rstrip("\n"), Fraction(0)))


def collect(asker: Asker, order: Order, step: int, stage: Stages) -> Collected:
    """The groups of `step`, with further draws for uniform ones where the profile says so. Changes nothing.

    Every rollout's seed belongs to (run seed, step, draw, sample). Raises Exhausted where no problem is left.
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

        with stage("rollout"):
            answers = asker.rollouts(fresh, seeds, grpo.group_size) if fresh else []
        with stage("judge"):
            for number, rollouts in zip(fresh, answers, strict=True):
                coin = stream(seed, step, f"random rewards {len(groups)}")
                groups.append([asker.judged(len(groups), number, one, coin) for one in rollouts])
                rows += groups[-1]
        # A file that ended has no further problems: what is there is trained on.
        left = refill([_is_uniform(group) for group in groups], grpo, rounds if fresh else grpo.max_extra_rounds)
        if not left.draw:
            break
        wanted, rounds = len(groups) + left.draw, rounds + 1
    uniform = [number for number, group in enumerate(groups) if _is_uniform(group)]
    return Collected(
        rows=rows,
        train=left.train,
        rounds=rounds,
        metrics=collected_metrics(rows, uniform, rounds),
        cursor=place if isinstance(place, CursorPlace) else None,
        stage=None if isinstance(place, CursorPlace) else place,
    )


def _is_uniform(group: Sequence[Row]) -> bool:
    """Of the rollouts that can be compared: fewer than two make no difference."""
    rewards = [row.reward for row in group if row.is_finite]
    return len(rewards) < 2 or is_uniform(rewards)
