"""What parts of the reward look at: a stretch of the completion, and a column of the problem's row. (pure)"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from profiles.errors import ExitCode, LonghaulError
from workers.problems.problem import Problem
from workers.rewards.reward import Case
from workers.verifiers.answers import extract, written

Where = Literal["all", "final", "marked"]
"""`all`: the whole completion. `final`: what follows its thoughts. `marked`: the marked answer in that."""

WHOLLY_MARKED = ("boxed", "answer tag", "mark")
_PHRASE = re.compile(r"\banswer(?:[ \t]{1,4}is\b[ \t]{0,4}:?|[ \t]{0,4}[:=])", re.IGNORECASE)


def stretch(case: Case[Any, Any], where: Where) -> str | None:
    """That stretch of the completion; None if it has none."""
    if where == "all":
        return case.text
    return final(case) if where == "final" else marked(case)


def final(case: Case[Any, Any]) -> str | None:
    """What follows the last `</think>`; without one, the completion, unless it was cut or opened a thought."""
    _, closed, rest = case.text.rpartition("</think>")
    if not closed and (case.is_truncated or "<think>" in case.text):
        return None
    return rest


def marked(case: Case[Any, Any]) -> str | None:
    """The last `\\boxed{}`, else the last `<answer>`, else what follows the last `####`, else what follows the last
    "answer is" or "answer:", to the end of its line. The first three are found as the verifier finds them."""
    found = extract(case.text, truncated=case.is_truncated)
    if found.rule in WHOLLY_MARKED:
        return found.text if not found.reason else None
    rest = final(case)
    if rest is None:
        return None
    starts = [one.end() for one in _PHRASE.finditer(rest)]
    line = rest[starts[-1] :].partition("\n")[0].strip() if starts else ""
    return line or None


def column(problem: Problem, name: str, part: str) -> Any:
    """The value of a column; of the right answer if the name is empty.

    Raises LonghaulError (INPUT) if the row has no such column, or nothing in it. part: the part that asks.
    """
    value = problem.columns.get(name) if name else problem.gold
    if value is None or value == "":
        raise bad_row(problem, part, f"reads {_described(name)}, which is not there", problem.columns)
    return value


def texts(problem: Problem, name: str, part: str) -> list[str]:
    """A column as texts: one, or a list of them. Numbers are in plain notation. Raises as `column` does."""
    value = column(problem, name, part)
    found = [_text(one) for one in (value if isinstance(value, list) else [value])]
    if not found or None in found:
        raise bad_row(problem, part, f"reads {_described(name)}, which is neither a text, a number nor a list of them")
    return [one for one in found if one is not None]


def bad_row(problem: Problem, part: str, why: str, columns: Iterable[str] = ()) -> LonghaulError:
    has = f" (its columns: {', '.join(sorted(columns)) or 'none'})" if columns else ""
    return LonghaulError(
        f"the part {part!r} of the reward {why}, in line {problem.line} of the data{has}",
        kept="all that was committed; this step is not",
        next_command=f"correct that line, or [grpo.reward.options.{part}] of the profile; then: "
        "python -m orchestrator run --accept-changes",
        exit_code=ExitCode.INPUT,
    )


def _described(name: str) -> str:
    return f"the column {name!r}" if name else "the right answer"


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return value if isinstance(value, str) else written(value)
