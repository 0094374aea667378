"""The user's functions as parts of GRPO's reward: computed for ended rollouts while others still decode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from workers.rewards.functions.protocol import Call, Given, Message
from workers.rewards.functions.runner import Answer, Failure, FunctionRunner
from workers.rewards.reward import ProblemCase


class FunctionPart:
    """One function. A future of `submit` holds the value under the part's name, with further named ones that do not
    count; it raises LonghaulError (REWARD) if the function failed, and (INPUT) if it cannot be called any more."""

    def __init__(
        self, runner: FunctionRunner, function: int, state: Callable[[], dict[str, Any]] = dict[str, Any]
    ) -> None:
        """runner: entered. function: index in its names. state: what `trainer_state` has now, such as global_step."""
        self.name = runner.names[function].rpartition(":")[2]
        self.takes_groups = runner.signatures[function].takes_groups
        self._runner, self._function, self._state = runner, function, state

    def check(self, columns: Collection[str]) -> None:
        """Raises LonghaulError (INPUT) if a function needs a column that no problem has."""
        self._runner.check_columns(columns)

    def submit(self, cases: Sequence[ProblemCase]) -> list[Future[Mapping[str, float]]]:
        """Begin to judge; returns at once, a future for each case. If it `takes_groups`, all are of one problem."""
        groups = [cases] if self.takes_groups else [[case] for case in cases]
        answers = self._runner.submit([call_of(self._function, group, self._state()) for group in groups])
        return [one for group, answer in zip(groups, answers, strict=True) for one in _split(answer, len(group))]


def call_of(function: int, cases: Sequence[ProblemCase], state: dict[str, Any]) -> Call:
    """The call for rollouts of one problem. (pure)"""
    asked = cases[0].problem
    return Call(
        function=function,
        row=asked.line,
        prompt=asked.prompt,
        answer=asked.gold,
        messages=msgspec.to_builtins(list(asked.messages)),
        columns=asked.columns,
        rollouts=[Given(_completion(case), facts_of(case), list(case.rollout.completion_ids)) for case in cases],
        state=state,
        source=asked.source,
    )


def _completion(case: ProblemCase) -> str | list[Message]:
    """The text, or of an episode its messages."""
    return [dict(one) for one in case.messages] or case.text


def facts_of(case: ProblemCase) -> dict[str, Any]:
    """The `facts` of a rollout. (pure)"""
    return {
        "tokens": case.tokens,
        "finish_reason": case.rollout.finish_reason,
        "is_truncated": case.is_truncated,
        "is_correct": case.verdict.correct,
        "is_well_formed": case.is_well_formed,
    }


def _split(answer: Future[Answer], count: int) -> list[Future[Mapping[str, float]]]:
    """The outcomes of a call as futures of their own."""
    found: list[Future[Mapping[str, float]]] = [Future() for _ in range(count)]

    def hand_on(done: Future[Answer]) -> None:
        if (error := done.exception()) is not None:
            for one in found:
                one.set_exception(error)
        else:
            for one, outcome in zip(found, done.result().outcomes, strict=True):
                if isinstance(outcome, Failure):
                    one.set_exception(outcome.error())
                else:
                    one.set_result(outcome)

    answer.add_done_callback(hand_on)
    return found
