"""The part that rewards JSON that fits a JSON schema. (extra `json`)"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar

from profiles.errors import ExitCode, LonghaulError
from workers.problems.problem import Problem
from workers.rewards.given import bad_row, column, final
from workers.rewards.reward import Case

LONGEST = 100_000
"""Characters of a text that is read."""
MOST_BROKEN = 500
"""Beginnings of an object that are none; a text with more has no JSON. The decoder counts lines for each."""
_FENCE = re.compile(r"^[ \t]{0,8}```[^\n]*\n(.*?)^[ \t]{0,8}```[ \t]*$", re.DOTALL | re.MULTILINE)
_END = re.compile(r"^[ \t]{0,8}```[ \t]*$", re.MULTILINE)
_START = re.compile(r"\{(?=\s{0,64}[\"}])")
NO_JSON = object()


@dataclass(frozen=True)
class Json:
    """Read in the text after the thoughts: the last fenced block, or, without one, the last JSON object."""

    schema: dict[str, Any] = field(default_factory=dict)
    """The JSON schema; empty: any JSON."""
    column: str = ""
    """In its place: the column with the schema of each row, as an object or as text."""
    parsed: float = 0.0
    """Reward for JSON that does not fit."""
    name: ClassVar[str] = "json"

    def __post_init__(self) -> None:
        if self.schema and self.column:
            raise ValueError("give either `schema` or `column`")
        if not 0 <= self.parsed <= 1:
            raise ValueError(f"`parsed` ({self.parsed}) must be from 0 to 1: 1 is for JSON that fits")
        if find_spec("jsonschema") is None:
            raise _missing()
        if self.schema:
            from workers.rewards.json_schema import checked

            checked(self.schema)

    def __call__(self, case: Case[Problem, object]) -> float:
        """1 for JSON that fits. JSON takes no NaN, no infinity, and no number beyond a float here."""
        from workers.rewards.json_schema import fits

        schema = self._of_row(case.problem) if self.column else self.schema
        text = final(case)
        value = last_json(text) if text is not None else NO_JSON
        if value is NO_JSON:
            return 0.0
        try:
            return 1.0 if fits(schema, value) else self.parsed
        except ValueError as error:
            raise bad_row(case.problem, self.name, f"cannot judge, because {error}") from error

    def _of_row(self, problem: Problem) -> dict[str, Any]:
        from workers.rewards.json_schema import checked

        found = column(problem, self.column, self.name)
        try:
            return checked(json.loads(found) if isinstance(found, str) else found)
        except (ValueError, RecursionError) as error:
            raise bad_row(problem, self.name, f"reads the column {self.column!r}, and {error}") from error


def last_json(text: str) -> Any:
    """The value of the last fenced block, else of the last object that is in no other; NO_JSON if it is none. (pure)"""
    if len(text) > LONGEST:
        return NO_JSON
    ends = [one.end() for one in _END.finditer(text)]
    # Behind the last end of a block, each beginning would be searched for one to the end of the text.
    fences = _FENCE.findall(text[: ends[-1]]) if ends else []
    try:
        return _DECODER.decode(fences[-1].strip()) if fences else _last_object(text)
    except (ValueError, RecursionError):
        return NO_JSON


def _last_object(text: str) -> Any:
    """Goes on after each object, and after an error where that is: never twice over the same text."""
    found, end, broken = NO_JSON, 0, 0
    while start := _START.search(text, end):
        try:
            found, end = _DECODER.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            end = max(error.pos, start.end())
            broken += 1
            if broken > MOST_BROKEN:
                return NO_JSON
    return found


def _number(text: str) -> int | float:
    """Whole numbers as such, also if written 1.0: a schema makes no difference."""
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:40]} is beyond a float")
    return int(value) if value.is_integer() else value


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_refused)


def _missing() -> LonghaulError:
    return LonghaulError(
        "the part 'json' of the reward needs jsonschema, which is not installed",
        kept="everything; nothing was started",
        next_command='pip install "longhaul[json]"',
        exit_code=ExitCode.INPUT,
    )
