"""Validation of one checkpoint: by the answers that it holds, else by a job of verl that answers and trains nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers.contract import Outcome as AttemptOutcome
from workers.contract import Result
from workers.cycle import validate as story
from workers.cycle.validate import Scored
from workers.runtime import Attempt
from workers.suites.suite import Suite
from workers.suites.validation import answers_of, compare
from workers.verl import held_out, preparing
from workers.verl.check import check
from workers.verl.held_out import HeldOut
from workers.verl.job import Job
from workers.verl.tasks import write_rows

LOOK_EVERY_S = 0.2


class Stopped(Exception):
    """As asked, before there were answers."""


def validate(attempt: Attempt) -> Result:
    """All suites of the profile on the spec's checkpoint."""
    check(attempt.profile)
    suites = held_out.load(attempt.profile, all_problems=attempt.spec.all_problems)

    @cache
    def all_scores(head: Path) -> dict[str, Scored]:
        return scores(attempt, suites, head)

    def score(name: str, head: Path) -> Scored:
        return all_scores(head)[name]

    try:
        return story.validate(attempt, {suite.name: partial(score, suite.name) for suite in suites})
    except Stopped:
        return Result(
            token=attempt.spec.token,
            role="validate",
            outcome=AttemptOutcome.STOPPED,
            exit_code=ExitCode.OK,
            last_step=attempt.step,
            checkpoint=attempt.spec.head,
        )


def scores(attempt: Attempt, suites: Sequence[Suite], head: Path) -> dict[str, Scored]:
    """By suite. Raises LonghaulError where a job is needed and fails, Stopped."""
    began = time.monotonic()
    folder = attempt.dir.path / "verl"
    folder.mkdir(exist_ok=True)
    with preparing.model_folder(attempt.profile, folder) as model:
        questions = HeldOut(attempt.profile, suites, model)
        answers = questions.kept_in(head)
        if answers is None:
            answers = ask(attempt, questions, head)
        outcomes = questions.outcomes(answers)
    seconds = (time.monotonic() - began) / len(suites)
    return {
        suite.name: Scored(compare(found, found), answers_of(suite, found, []), suite.available, seconds)
        for suite, found in zip(suites, outcomes, strict=True)
    }


def ask(attempt: Attempt, questions: HeldOut, head: Path) -> list[str]:
    """Let verl answer with the weights of `head`."""
    profile, folder = attempt.profile, attempt.dir.path / "verl"
    rows = questions.rows()
    # verl reads a file of problems to train on whatever it is asked to do, and wants a whole batch in it.
    padding = folder / "padding.parquet"
    write_rows(padding, (rows * profile.grpo.groups_per_step)[: profile.grpo.groups_per_step])
    work = preparing.begin(
        attempt,
        questions.model,
        head,
        train=padding,
        validation=questions.write(folder / "held_out.parquet"),
        last_step=attempt.step + 1,
        is_validation=True,
    )
    with Job(profile, work) as job:
        job.begin()
        wait(attempt, job)
    try:
        return questions.answers_in(work.answers / f"{attempt.step}.jsonl")
    except ValueError as error:
        raise _failed(attempt, job, f"verl's answers cannot be used: {error}") from error


def wait(attempt: Attempt, job: Job) -> None:
    """Until the job has ended with 0. Raises LonghaulError for every other end, Stopped."""
    seconds = attempt.profile.verl.start_s + attempt.profile.timeouts.step_min_s
    deadline = time.monotonic() + seconds
    while (exit_code := job.poll()) is None:
        if time.monotonic() > deadline:
            raise _failed(attempt, job, f"verl did not answer within {seconds:g} s")
        if attempt.control.requests.stop.is_set():
            raise Stopped
        attempt.at(attempt.step, "validate")
        time.sleep(LOOK_EVERY_S)
    if exit_code:
        end = job.ended(exit_code)
        raise _failed(attempt, job, f"verl ended with {end.what}", end.code, end.advice)


def _failed(attempt: Attempt, job: Job, what: str, code: ExitCode = ExitCode.ENGINE, advice: str = "") -> LonghaulError:
    return LonghaulError(
        what,
        kept="the checkpoint, unchanged",
        next_command=advice or f"tail -50 {attempt.run.relative(job.work.log)}",
        exit_code=code,
    )
