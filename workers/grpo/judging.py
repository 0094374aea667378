"""Judges the rollouts of a step. Parts of the reward that take time are computed while other rollouts still decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Self

from workers.rewards.earned import Slow, gathered
from workers.rewards.reward import ProblemCase, SlowReward
from workers.rollout.engine import OnEnd, Rollout


class Judging:
    """A context manager for the rollouts of some problems. Without slow parts, it judges when all have ended."""

    def __init__(
        self,
        case_of: Callable[[int, Rollout], ProblemCase],
        slow: Sequence[SlowReward],
        problems: Sequence[int],
        count: int,
        on_error: Literal["stop", "skip"],
    ) -> None:
        """count: rollouts of each problem. on_error: whether a part that cannot be computed ends the step."""
        self._case_of, self._slow, self._problems, self._count, self._on_error = (
            case_of,
            slow,
            problems,
            count,
            on_error,
        )
        self._cases: dict[int, ProblemCase] = {}
        self._found: dict[tuple[str, int], Future[Mapping[str, float]]] = {}
        """(part, number of the rollout) -> what it finds."""
        self._begun: list[Future[None]] = []
        # One thread: cases are made in turn, and the threads that decode never wait for a judge.
        self._thread = ThreadPoolExecutor(1, "judge") if slow else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    @property
    def on_end(self) -> OnEnd | None:
        """What the engine tells of each rollout that ends; None if nothing can begin before all have ended."""
        return self._hear if self._thread is not None else None

    def _hear(self, number: int, rollout: Rollout) -> None:
        assert self._thread is not None
        self._begun.append(self._thread.submit(self._begin, number, rollout))

    def _begin(self, number: int, rollout: Rollout) -> None:
        self._cases[number] = self._case_of(self._problems[number // self._count], rollout)
        first = number - number % self._count
        group = range(first, first + self._count)
        for part in self._slow:
            if not part.takes_groups:
                self._submit(part, [number])
            elif all(one in self._cases for one in group):
                self._submit(part, group)

    def _submit(self, part: SlowReward, numbers: Sequence[int]) -> None:
        futures = part.submit([self._cases[number] for number in numbers])
        self._found |= {(part.name, number): one for number, one in zip(numbers, futures, strict=True)}

    def found(self, answers: Sequence[Sequence[Rollout]]) -> list[list[tuple[ProblemCase, Slow]]]:
        """Each rollout's case and what the slow parts found, once all are judged.

        answers: the rollouts of each problem. Raises LonghaulError (REWARD) for a part that could not be computed, if
        that ends the step.
        """
        rollouts = dict(enumerate(one for group in answers for one in group))
        for begun in self._begun:
            begun.result()
        for number, rollout in rollouts.items():
            # Not heard of, or drawn again by another engine, whose rounding may have led to other tokens.
            if number not in self._cases or self._cases[number].rollout != rollout:
                self._begin(number, rollout)
        judged = [(self._cases[number], self._slow_of(number)) for number in rollouts]
        return [judged[at : at + self._count] for at in range(0, len(judged), self._count)]

    def _slow_of(self, number: int) -> Slow:
        return gathered((self._found[part.name, number] for part in self._slow), self._on_error)
