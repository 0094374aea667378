"""Validation between cycles: for each held-out problem one greedy answer, and one sampled at temperature 1."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path

from msgspec import UNSET

from profiles.metrics import MEAN_REWARD, NOT_JUDGED, SAMPLED_REWARD
from profiles.schema import Profile
from state import event_kinds
from workers.contract import TaskAnswers
from workers.cycle.validate import Scored, Suite
from workers.models.policy import restored_policy
from workers.models.torch_setup import device_of, set_up_torch
from workers.rollout.engine import Sampling
from workers.rollout.fewer_rows import with_fewer_rows
from workers.rollout.free_rows import widen
from workers.rollout.probe import probe
from workers.rollout.select import engine_of
from workers.runtime import Attempt
from workers.sandbox import Sandbox
from workers.sandbox.limits import limits_of
from workers.suites.answer_formats import format_of_run
from workers.suites.asking import Examinee, QuestionResult, ask, not_judged
from workers.suites.data_files import data_folder
from workers.suites.question import Question
from workers.suites.registry import load_suites
from workers.suites.run_reward import RunReward, opened
from workers.suites.scoring import Metrics, Outcome, metrics_of
from workers.suites.suite import Suite as Questions

MAX_ROWS = 512
"""Most problems asked at one time; after each such batch the master gets a progress report."""


def suites_of(attempt: Attempt, sandbox: Sandbox | None) -> dict[str, Suite]:
    """The suites of the profile. sandbox: for answers that must be run; None: one is started where a suite needs it.

    Raises LonghaulError (INPUT) if a suite's data is missing.
    """
    profile = attempt.profile
    found = load_suites(
        profile.validation.suites,
        data_folder(profile.validation.data),
        profile.validation.examples_per_task,
        all_of_files=attempt.spec.all_problems,
        profile=profile,
    )

    @cache
    def examinee(head: Path) -> Examinee:
        set_up_torch(profile, isolate=attempt.spec.isolate)
        with attempt.stage("loading"):
            assert attempt.spec.head is not None
            policy = restored_policy(profile, head, attempt.spec.head.step, device_of(profile), attempt.warn)
            engine = engine_of(policy.model, profile, policy.tokenizer, warn=attempt.warn)
            positions = getattr(policy.model.config, "max_position_embeddings", 0) or 0
            one = Examinee(engine, policy.tokenizer, format_of_run(profile, head), positions)
            attempt.event(event_kinds.PATH, **probe(policy.model, engine, profile))
            # No trainer shares the GPU, so its planned rows do not apply.
            longest = max((length_of(one, question) for suite in found for question in suite.questions), default=0)
            if profile.grpo.environment.name:  # which says itself what the prompts are
                longest = max(longest, profile.sampling.max_prompt_tokens)
            if not profile.validation.overlap:  # else the next cycle's worker needs that memory
                widen(engine, policy.model, profile, prompt_tokens=longest)
        return one

    def evaluate(suite: Questions, head: Path) -> Scored:
        with _earning(suite, attempt) as reward:  # before the model: its functions may have errors
            one = examinee(head)
            began = time.monotonic()
            limit = profile.sampling.max_completion_tokens
            greedy = Sampling(greedy=True, max_new_tokens=limit, stop=one.answer_format.stop)
            second: list[Outcome] = []
            with _judging(suite, one, sandbox, profile) as judge_in:
                first = _ask_all(attempt, one, suite, greedy, judge_in, reward, "validate_greedy")
                if profile.validation.sampled:
                    sampled = Sampling(max_new_tokens=limit, stop=one.answer_format.stop)
                    second = _ask_all(attempt, one, suite, sampled, judge_in, reward, "validate_sampled")
            seconds = time.monotonic() - began
        if reward is not None and (text := reward.never_solved(suite, [*first, *second])):
            attempt.warn(text)
        return Scored(compare(first, second or first), answers_of(suite, first, second), suite.available, seconds)

    return {suite.name: partial(evaluate, suite) for suite in found}


def _judging(
    suite: Questions, examinee: Examinee, sandbox: Sandbox | None, profile: Profile
) -> AbstractContextManager[Sandbox | None]:
    """The sandbox that judges a suite's answers; None if they need none."""
    if not suite.needs_sandbox(examinee.answer_format):
        return nullcontext()
    return nullcontext(sandbox) if sandbox is not None else Sandbox(limits_of(profile.sandbox), profile.sandbox.jobs)


def _earning(suite: Questions, attempt: Attempt) -> AbstractContextManager[RunReward | None]:
    """The run's reward, if it judges a suite's answers."""
    if not suite.is_rewarded:
        return nullcontext()
    return opened(attempt.profile, attempt.dir.path, lambda: attempt.step)


def _ask_all(
    attempt: Attempt,
    examinee: Examinee,
    suite: Questions,
    sampling: Sampling,
    sandbox: Sandbox | None,
    reward: RunReward | None,
    stage: str,
) -> list[Outcome]:
    """One answer to each question, batched by similar prompt length."""
    questions = sorted(suite.questions, key=partial(length_of, examinee))
    found: list[QuestionResult] = []
    with attempt.stage(stage):
        while len(found) < len(questions):
            lot = questions[len(found) : len(found) + MAX_ROWS]
            work = partial(ask, examinee, suite, lot, sampling, 1, sandbox, reward)
            found += with_fewer_rows(examinee.engine, work, attempt.warn)
            attempt.at(attempt.step, f"{stage}, {suite.name} {len(found)} of {len(questions)}")
    if text := not_judged(suite, found):
        attempt.warn(text)
    return [one.outcome for one in found]


def length_of(examinee: Examinee, question: Question) -> int:
    """Tokens of the question's prompt."""
    return len(examinee.tokenizer.encode_prompt(examinee.answer_format.ask(question.kind, question.item)))


def answers_of(suite: Questions, greedy: Sequence[Outcome], sampled: Sequence[Outcome]) -> dict[str, TaskAnswers]:
    """Which questions were answered right, by task, in the suite's order. (pure)

    sampled: empty if nothing was sampled.
    """
    first = {one.question_id: one.right[0] for one in greedy}
    second = {one.question_id: one.right[0] for one in sampled}
    by_task: dict[str, list[Question]] = {}
    for question in suite.questions:
        by_task.setdefault(question.task, []).append(question)
    return {
        task: TaskAnswers(
            tuple(question.content_name for question in questions),
            "".join("01"[first[question.question_id]] for question in questions),
            "".join("01"[second[question.question_id]] for question in questions) if second else "",
        )
        for task, questions in by_task.items()
    }


def compare(greedy: Sequence[Outcome], sampled: Sequence[Outcome]) -> Metrics:
    """The metrics that a validation stores for each task; those of rewards only where a reward judges. (pure)

    worked_share, mean_tokens and malformed come from the sampled answers, or from the greedy ones if nothing was
    sampled.
    """
    first, second = metrics_of(greedy, greedy=True), metrics_of(sampled, greedy=False)
    lots = (first, second) if sampled is not greedy else (first,)
    rewarded = {one.task for one in greedy if one.rewards is not UNSET}

    def of_rewards(task: str) -> dict[str, float]:
        names = ((MEAN_REWARD.name, first), (SAMPLED_REWARD.name, second))
        means = {name: lot[task][MEAN_REWARD.name] for name, lot in names if MEAN_REWARD.name in lot[task]}
        return means | {NOT_JUDGED.name: sum(lot[task]["undecided"] for lot in lots)}

    return {
        task: {name: first[task][name] for name in ("n", "correct", "accuracy", "low", "high")}
        | {"sampled_accuracy": second[task]["pass_at_1"]}
        | {name: second[task][name] for name in ("worked_share", "mean_tokens", "malformed")}
        | (of_rewards(task) if task in rewarded else {})
        for task in first
        if task != "mean"
    }
