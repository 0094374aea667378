"""Asks a model questions: encode, complete, find the answers, judge them. Stateless between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from msgspec import UNSET, UnsetType

from workers.environments.episodes import Converser
from workers.rng import derive
from workers.rollout.engine import Request, Rollout, Sampling
from workers.sandbox import Sandbox
from workers.suites.answer_format import AnswerFormat
from workers.suites.question import Question
from workers.suites.run_reward import RunReward
from workers.suites.scoring import Outcome
from workers.suites.suite import Answer, Suite
from workers.tasks.judge import Correctness


class Completer(Converser, Protocol):
    """A rollout engine, or a wrapper of one."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]: ...


class Encoder(Protocol):
    def encode_prompt(self, text: str) -> tuple[int, ...]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Examinee:
    """The model under test. max_positions: tokens of prompt and completion together; 0: no limit."""

    engine: Completer
    tokenizer: Encoder
    answer_format: AnswerFormat
    max_positions: int = 0


@dataclass(frozen=True)
class QuestionResult:
    """One question's outcome, with the completions."""

    outcome: Outcome
    completions: tuple[str, ...]
    failures: tuple[str, ...] = ()
    """Why samples have no reward."""


def ask(
    examinee: Examinee,
    suite: Suite,
    questions: Sequence[Question],
    sampling: Sampling,
    samples: int,
    sandbox: Sandbox | None,
    reward: RunReward | None = None,
) -> list[QuestionResult]:
    """Ask every question `samples` times. The first sample uses the question's own seed. Results are in order.

    reward: judges the answers, if the suite `is_rewarded`.
    """
    answer_format = examinee.answer_format
    prompts = [
        examinee.tokenizer.encode_prompt(answer_format.ask(question.kind, question.item)) for question in questions
    ]
    room = examinee.max_positions - sampling.max_new_tokens if examinee.max_positions else 1 << 62
    is_played = suite.is_rewarded and reward is not None and reward.environment is not None
    fits = [is_played or len(ids) <= room for ids in prompts]  # an environment says itself what the prompts are
    requests = [
        Request(ids, question.seed if number == 0 else derive(question.seed, 0, "sample", number))
        for question, ids, is_asked in zip(questions, prompts, fits, strict=True)
        if is_asked
        for number in range(samples)
    ]
    if is_played:
        assert reward is not None
        rollouts = _played(reward, examinee, questions, [one.seed for one in requests], sampling, samples)
    else:
        rollouts = examinee.engine.generate(requests, sampling) if requests else []
    texts = [examinee.tokenizer.decode(rollout.completion_ids) for rollout in rollouts]
    asked = [question for question, is_asked in zip(questions, fits, strict=True) if is_asked]
    if suite.is_rewarded:
        assert reward is not None
        judged = _by_reward(reward, examinee, asked, rollouts, samples, sampling.max_new_tokens)
    else:
        judged = _by_suite(suite, answer_format, [one for one in asked for _ in range(samples)], texts, sandbox)
    found = []
    place = 0
    for question, is_asked in zip(questions, fits, strict=True):
        if not is_asked:
            none = (None,) * samples if suite.is_rewarded else UNSET
            outcome = Outcome(
                question.question_id, question.task, (False,) * samples, (0,) * samples, too_long=True, rewards=none
            )
            found.append(QuestionResult(outcome, ("",) * samples))
            continue
        mine = slice(place, place + samples)
        place += samples
        found.append(_asked(question, answer_format, rollouts[mine], texts[mine], judged[mine]))
    return found


def _played(
    reward: RunReward,
    examinee: Examinee,
    questions: Sequence[Question],
    seeds: Sequence[int],
    sampling: Sampling,
    samples: int,
) -> list[Rollout]:
    """`samples` episodes of each question."""
    problems = [one.rewarded.problem for one in questions if one.rewarded is not None for _ in range(samples)]
    answer_format, tokenizer = examinee.answer_format, examinee.tokenizer
    return [*reward.play(examinee.engine, problems, seeds, sampling, answer_format, tokenizer)]


class _Judged(NamedTuple):
    """One sample. reward: if one judges it."""

    verdict: Correctness
    is_malformed: bool
    reward: float | UnsetType | None = UNSET
    failure: str = ""


def _by_suite(
    suite: Suite,
    answer_format: AnswerFormat,
    asked: Sequence[Question],
    texts: Sequence[str],
    sandbox: Sandbox | None,
) -> list[_Judged]:
    answers = [
        Answer(question, answer_format.answer(question.kind, text)) for question, text in zip(asked, texts, strict=True)
    ]
    verdicts = suite.judge(answers, sandbox)
    return [_Judged(verdict, answer.text is None) for verdict, answer in zip(verdicts, answers, strict=True)]


def _by_reward(
    reward: RunReward,
    examinee: Examinee,
    asked: Sequence[Question],
    rollouts: Sequence[Rollout],
    samples: int,
    longest: int,
) -> list[_Judged]:
    """asked: each question once; rollouts: `samples` of each."""
    problems = [one.rewarded.problem for one in asked if one.rewarded is not None]
    groups = [rollouts[at : at + samples] for at in range(0, len(rollouts), samples)]
    found = reward.judge(problems, groups, examinee.answer_format, examinee.tokenizer, longest)
    return [
        _Judged(
            Correctness.UNKNOWN if one.reward is None else Correctness.CORRECT if one.is_solved else Correctness.WRONG,
            not one.is_answered,
            one.reward,
            one.failure,
        )
        for group in found
        for one in group
    ]


def _asked(
    question: Question,
    answer_format: AnswerFormat,
    rollouts: Sequence[Rollout],
    texts: Sequence[str],
    judged: Sequence[_Judged],
) -> QuestionResult:
    rewards = tuple(one.reward for one in judged if one.reward is not UNSET)
    outcome = Outcome(
        question.question_id,
        question.task,
        right=tuple(one.verdict is Correctness.CORRECT for one in judged),
        tokens=tuple(rollout.num_own for rollout in rollouts),
        malformed=sum(one.is_malformed for one in judged),
        undecided=sum(one.verdict is Correctness.UNKNOWN for one in judged),
        worked=sum(answer_format.is_worked(question.kind, text) for text in texts),
        truncated=sum(rollout.finish_reason == "length" for rollout in rollouts),
        rewards=rewards or UNSET,
    )
    return QuestionResult(outcome, tuple(texts), tuple(one.failure for one in judged if one.failure))


def not_judged(suite: Suite, found: Sequence[QuestionResult]) -> str:
    """A warning about answers without a reward; empty if all have one. (pure)"""
    failures = [text for one in found for text in one.failures]
    if not failures:
        return ""
    return (
        f"{len(failures)} answers to the suite {suite.name} have no reward and count as not solved; "
        f"the first: {failures[0]}"
    )
