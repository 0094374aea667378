"""Validations by task: greedy accuracy with its interval, and the metrics that move earlier. (pure)

Greedy accuracy is a step function: it can stay flat for a hundred steps while the policy moves. Sampled accuracy, the
share of worked answers and their mean length move from the first steps on, so they are always shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.metrics import MEAN_REWARD
from profiles.task_kinds import SHOWN
from state.history import ValidationFacts


@dataclass(frozen=True)
class Score:
    """One validation of one task; None for what was not measured."""

    step: int
    greedy: float
    low: float
    high: float
    sampled: float | None = None
    worked: float | None = None
    tokens: float | None = None
    reward: float | None = None
    """Mean of the greedy answers, where the run's own reward judges."""


@dataclass(frozen=True)
class TaskScores:
    """Validations of one task, or of the mean, oldest first and never empty."""

    task: str
    scores: tuple[Score, ...]

    @property
    def first(self) -> Score:
        return self.scores[0]

    @property
    def last(self) -> Score:
        return self.scores[-1]

    @property
    def change(self) -> float:
        """Change of greedy accuracy since the start of the run."""
        return self.last.greedy - self.first.greedy

    @property
    def is_certain(self) -> bool:
        """Whether the intervals of the first and last validation are disjoint."""
        return self.last.low > self.first.high or self.last.high < self.first.low


def task_scores(validations: Sequence[ValidationFacts], first: ValidationFacts | None) -> tuple[TaskScores, ...]:
    """Scores by task, then the mean, on the suite of the run's first validation.

    first: the run's first validation; prepended if `validations` holds only the newest ones.
    """
    global _known
    suite = first.suite if first else (validations[0].suite if validations else "")
    chosen = [facts for facts in validations if facts.suite == suite]
    if first is not None and (not chosen or chosen[0].step > first.step):
        chosen.insert(0, first)
    _known = {id(facts): _known.get(id(facts)) or (facts, _scores(facts)) for facts in chosen}
    by_task = [_known[id(facts)][1] for facts in chosen]
    others = sorted({task for scores in by_task for task in scores} - {*SHOWN, "mean"})
    tasks = [*SHOWN, *others, "mean"]
    rows = ((task, tuple(scores[task] for scores in by_task if task in scores)) for task in tasks)
    return tuple(TaskScores(task, scores) for task, scores in rows if scores)


_known: dict[int, tuple[ValidationFacts, dict[str, Score]]] = {}
"""What the last call judged, by identity: a display asks again after each commit, which adds one."""


def _scores(facts: ValidationFacts) -> dict[str, Score]:
    return {task: _score(facts, task) for task in facts.metrics}


def _score(facts: ValidationFacts, task: str) -> Score:
    metrics = facts.metrics[task]
    greedy = float(metrics["accuracy"])
    worked, tokens = metrics.get("worked_share"), metrics.get("mean_tokens")
    if task == "mean" and worked is None:
        worked, tokens = _mean_of_tasks(facts, "worked_share"), _mean_of_tasks(facts, "mean_tokens")
    return Score(
        step=facts.step,
        greedy=greedy,
        low=float(metrics.get("low", greedy)),
        high=float(metrics.get("high", greedy)),
        sampled=metrics.get("sampled_accuracy"),
        worked=worked,
        tokens=tokens,
        reward=metrics.get(MEAN_REWARD.name),
    )


def _mean_of_tasks(facts: ValidationFacts, name: str) -> float | None:
    found = [values[name] for task, values in facts.metrics.items() if task != "mean" and values.get(name) is not None]
    return sum(found) / len(found) if found else None
