"""Held-out accuracy of a checkpoint: one greedy answer a problem, and one sampled at temperature 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from workers.azr.tasks import TASKS, Task
from workers.azr.trainer import device_of, set_up_torch
from workers.intervals import wilson
from workers.models import load
from workers.models.policy import restored_policy
from workers.pocket.evaluation import STYLE, HeldOut, held_out_problems
from workers.rng import derive
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.select import Portions, engine_of
from workers.runtime import Attempt
from workers.validate import Suite

Metrics = dict[str, float]


def pocket_suites(attempt: Attempt) -> dict[str, Suite]:
    """The suites that the profile may name."""

    def evaluate(head: Path) -> dict[str, Metrics]:
        profile = attempt.profile
        set_up_torch(profile, isolate=attempt.spec.isolate)
        with attempt.stage("loading"):
            assert attempt.spec.head is not None
            policy = restored_policy(profile, head, attempt.spec.head.step, device_of(profile))
        problems = held_out_problems(profile.validation.examples_per_task)
        engine = engine_of(policy.model, profile, policy.tokenizer, warn=attempt.warn)
        with attempt.stage("validate_greedy"):
            greedy = answer(engine, policy.tokenizer, problems, Sampling(greedy=True, max_new_tokens=limit_of(attempt)))
        sampled = None
        if profile.validation.sampled:
            with attempt.stage("validate_sampled"):
                sampled = answer(engine, policy.tokenizer, problems, Sampling(max_new_tokens=limit_of(attempt)))
        return {task: measure(task, problems, greedy, sampled) for task in TASKS}

    return {"pocket": evaluate}


def limit_of(attempt: Attempt) -> int:
    return attempt.profile.sampling.max_completion_tokens


def answer(
    engine: Portions, tokenizer: load.Tokenizer, problems: Sequence[HeldOut], sampling: Sampling
) -> list[tuple[Rollout, str]]:
    """One completion a problem with its text. Seeds belong to the problem, so every checkpoint draws the same."""
    requests = [
        Request(tokenizer.encode(problem.prompt), derive(0, 0, "validation", number))
        for number, problem in enumerate(problems)
    ]
    rollouts = engine.generate(requests, sampling)
    return [(rollout, tokenizer.decode(rollout.completion_ids)) for rollout in rollouts]


def measure(
    task: Task,
    problems: Sequence[HeldOut],
    greedy: Sequence[tuple[Rollout, str]],
    sampled: Sequence[tuple[Rollout, str]] | None,
) -> Metrics:
    """Metrics of one task. worked_share, mean_tokens and malformed are of the sampled answers, where there are any."""
    mine = [number for number, problem in enumerate(problems) if problem.task == task]
    correct = sum(problems[number].is_right(greedy[number][1]) for number in mine)
    shown = sampled if sampled is not None else greedy
    texts = [shown[number][1] for number in mine]
    right = [problems[number].is_right(shown[number][1]) for number in mine]
    low, high = wilson(correct, len(mine))
    return {
        "n": len(mine),
        "correct": correct,
        "accuracy": correct / len(mine),
        "low": low,
        "high": high,
        "sampled_accuracy": fmean(right),
        "worked_share": fmean(STYLE.is_worked(task, text) for text in texts),
        "mean_tokens": fmean(len(shown[number][0].completion_ids) for number in mine),
        "malformed": fmean(STYLE.parse_answer(task, text) is None for text in texts),
    }
