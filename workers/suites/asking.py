"""Asks a model questions: encode, complete, find the answers, judge them. Stateless between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.rng import derive
from workers.rollout.engine import Request, Rollout, Sampling
from workers.sandbox import Sandbox
from workers.suites.answer_format import AnswerFormat
from workers.suites.question import Question
from workers.suites.scoring import Outcome
from workers.suites.suite import Answer, Suite
from workers.tasks.judge import Correctness


class Completer(Protocol):
    """A rollout engine, or a wrapper of one."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]: ...


class Encoder(Protocol):
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


def ask(
    examinee: Examinee,
    suite: Suite,
    questions: Sequence[Question],
    sampling: Sampling,
    samples: int,
    sandbox: Sandbox | None,
) -> list[QuestionResult]:
    """Ask every question `samples` times. The first sample uses the question's own seed. Results are in order."""
    answer_format = examinee.answer_format
    prompts = [examinee.tokenizer.encode(answer_format.ask(question.kind, question.item)) for question in questions]
    room = examinee.max_positions - sampling.max_new_tokens if examinee.max_positions else 1 << 62
    fits = [len(ids) <= room for ids in prompts]
    requests = [
        Request(ids, question.seed if number == 0 else derive(question.seed, 0, "sample", number))
        for question, ids, is_asked in zip(questions, prompts, fits, strict=True)
        if is_asked
        for number in range(samples)
    ]
    rollouts = examinee.engine.generate(requests, sampling) if requests else []
    texts = [examinee.tokenizer.decode(rollout.completion_ids) for rollout in rollouts]
    asked = [question for question, is_asked in zip(questions, fits, strict=True) if is_asked for _ in range(samples)]
    answers = [
        Answer(question, answer_format.answer(question.kind, text)) for question, text in zip(asked, texts, strict=True)
    ]
    verdicts = suite.judge(answers, sandbox)
    found = []
    place = 0
    for question, is_asked in zip(questions, fits, strict=True):
        if not is_asked:
            outcome = Outcome(question.question_id, question.task, (False,) * samples, (0,) * samples, too_long=True)
            found.append(QuestionResult(outcome, ("",) * samples))
            continue
        mine = slice(place, place + samples)
        place += samples
        found.append(_asked(question, answer_format, rollouts[mine], texts[mine], answers[mine], verdicts[mine]))
    return found


def _asked(
    question: Question,
    answer_format: AnswerFormat,
    rollouts: Sequence[Rollout],
    texts: Sequence[str],
    answers: Sequence[Answer],
    verdicts: Sequence[Correctness],
) -> QuestionResult:
    outcome = Outcome(
        question.question_id,
        question.task,
        right=tuple(verdict is Correctness.CORRECT for verdict in verdicts),
        tokens=tuple(len(rollout.completion_ids) for rollout in rollouts),
        malformed=sum(answer.text is None for answer in answers),
        undecided=sum(verdict is Correctness.UNKNOWN for verdict in verdicts),
        worked=sum(answer_format.is_worked(question.kind, text) for text in texts),
        truncated=sum(rollout.finish_reason == "length" for rollout in rollouts),
    )
    return QuestionResult(outcome, tuple(texts))
