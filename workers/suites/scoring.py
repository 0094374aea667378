"""Computes a suite's metrics from judged answers. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from msgspec import UNSET, Struct, UnsetType

from profiles.metrics import MEAN_REWARD
from workers.intervals import pass_at_k, wilson

Metrics = dict[str, dict[str, float]]
"""task -> name -> number, with `mean` over the tasks."""


class Outcome(Struct, frozen=True):
    """The outcome of all samples of one question. Lists have one item per sample."""

    question_id: str
    task: str
    right: tuple[bool, ...]
    tokens: tuple[int, ...]
    malformed: int = 0
    """Samples without an answer; they count as wrong."""
    undecided: int = 0
    """Samples that hit the wall-clock limit, so that the machine decided, or without a reward; they count as wrong."""
    worked: int = 0
    truncated: int = 0
    """Samples that ended at the length limit."""
    too_long: bool = False
    """The prompt exceeds the context window, so the question was skipped."""
    rewards: tuple[float | None, ...] | UnsetType = UNSET
    """Where the run's own reward judges: the total of each sample; None for one without."""


def metrics_of(outcomes: Sequence[Outcome], *, greedy: bool, ks: Sequence[int] = (1,)) -> Metrics:
    """Each task's numbers and their `mean`. greedy: the score is `accuracy`; otherwise `pass_at_1` and those of `ks`.

    `low`, `high`: Wilson's 95 % interval of the score over problems; for `mean`, over the problems of all tasks
    together.
    """
    tasks = sorted({outcome.task for outcome in outcomes})
    found = {task: _of_task([one for one in outcomes if one.task == task], greedy, ks) for task in tasks}
    return {**found, "mean": _mean(found, score_name(greedy=greedy))}


def score_name(*, greedy: bool) -> str:
    return "accuracy" if greedy else "pass_at_1"


def _of_task(outcomes: Sequence[Outcome], greedy: bool, ks: Sequence[int]) -> dict[str, float]:
    shares = [fmean(outcome.right) for outcome in outcomes]
    num_samples = sum(len(outcome.right) for outcome in outcomes)
    low, high = wilson(sum(shares), len(outcomes))
    score = {score_name(greedy=greedy): fmean(shares)}
    if not greedy:
        for k in ks:
            score[f"pass_at_{k}"] = fmean(pass_at_k(len(one.right), sum(one.right), k) for one in outcomes)
    return {
        "n": len(outcomes),
        "samples": num_samples,
        "correct": sum(sum(outcome.right) for outcome in outcomes),
        **score,
        "low": low,
        "high": high,
        "malformed": sum(one.malformed for one in outcomes) / num_samples,
        "undecided": sum(one.undecided for one in outcomes),
        "truncated": sum(one.truncated for one in outcomes) / num_samples,
        "too_long": sum(one.too_long for one in outcomes),
        "worked_share": sum(one.worked for one in outcomes) / num_samples,
        "mean_tokens": fmean(tokens for one in outcomes for tokens in one.tokens),
        **_reward(outcomes),
    }


def rewards_of(outcomes: Sequence[Outcome]) -> list[float]:
    """All rewards that were computed."""
    return [one for outcome in outcomes if outcome.rewards is not UNSET for one in outcome.rewards if one is not None]


def _reward(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Empty where no reward judges, or none could be computed."""
    found = rewards_of(outcomes)
    return {MEAN_REWARD.name: fmean(found)} if found else {}


def _mean(tasks: Metrics, score: str) -> dict[str, float]:
    """Unweighted mean over the tasks."""
    n = int(sum(one["n"] for one in tasks.values()))
    low, high = wilson(sum(one[score] * one["n"] for one in tasks.values()), n)
    rewards = [one[MEAN_REWARD.name] for one in tasks.values() if MEAN_REWARD.name in one]
    names = [name for name in next(iter(tasks.values())) if name == "accuracy" or name.startswith("pass_at_")]
    return {
        "n": n,
        "samples": sum(one["samples"] for one in tasks.values()),
        "correct": sum(one["correct"] for one in tasks.values()),
        **{name: fmean(one[name] for one in tasks.values()) for name in names},
        "low": low,
        "high": high,
        **{name: fmean(one[name] for one in tasks.values()) for name in ("malformed", "worked_share", "mean_tokens")},
        **({MEAN_REWARD.name: fmean(rewards)} if rewards else {}),
    }
