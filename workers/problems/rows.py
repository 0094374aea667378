"""One row of data as a problem, or why it is none. (pure)"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from profiles.schema import Columns
from workers.problems import test_rows
from workers.problems.problem import Message
from workers.verifiers.answers import LONGEST_ANSWER, gold_of, written
from workers.verifiers.unit_tests import BadTests, text_of

LONE = "a lone surrogate character"
DEEPEST = 64
"""Levels of lists and objects that a column may have; deeper values are an attack or a broken file."""
ROLES = ("system", "developer", "user", "assistant", "tool")
LARGEST, SMALLEST = (1 << 64) - 1, -(1 << 63)
"""Whole numbers beyond these bounds become text, because other programs read JSON's numbers in 64 bits."""


class Parsed(Struct, frozen=True):
    """What `Problem` takes of a row. not_json: column -> kind of value that JSON cannot hold; it is not in columns."""

    prompt: str
    gold: str
    has_tests: bool = False
    messages: tuple[Message, ...] = ()
    columns: dict[str, Any] = {}
    not_json: dict[str, str] = {}


class Reading(Struct, frozen=True):
    """How rows are read. with_tests: tests may take the place of an answer. needs_answer, needs_prompt: whether a row
    without one is no problem. A row that needs no prompt and has none is its own: the text of the row in JSON."""

    columns: Columns = Columns()
    with_tests: bool = False
    needs_answer: bool = True
    needs_prompt: bool = True


class _Bad(ValueError):
    """The row is no problem; the text says why."""


def parsed(row: Any, how: Reading) -> Parsed | str:
    """The problem of a row, or why it is none."""
    if not isinstance(row, dict):
        return "not an object"
    try:
        return _parsed(row, how)
    except _Bad as error:
        return str(error)


def _parsed(row: Mapping[str, Any], how: Reading) -> Parsed:
    tests = _tests(row, how.columns) if how.with_tests else None
    whole = _prompt_of_code(row, how.columns) if tests is not None else None
    if whole is not None:
        column, prompt = whole
        messages: tuple[Message, ...] = ()
    else:
        column = _prompt_column(row, how.columns)
        prompt, messages = ("", ()) if not (column or how.needs_prompt) else _prompt(row, column, how.columns)
    gold = tests if tests is not None else _gold(row, how)
    columns: dict[str, Any] = {}
    not_json: dict[str, str] = {}
    for name, value in row.items():
        if name == column:
            continue
        try:
            columns[name] = _json(name, value, DEEPEST)
        except _NotJson as error:
            not_json[name] = str(error)
    if tests is not None:
        columns["tests"] = json.loads(tests)
    prompt = prompt or json.dumps(columns, sort_keys=True)
    return Parsed(prompt, gold, tests is not None, messages, columns, not_json)


# --- prompts ---------------------------------------------------------------------------------------------------------


def _prompt_column(row: Mapping[str, Any], columns: Columns) -> str:
    """The column of the prompt or of the messages; "" if the row has neither."""
    if columns.messages:
        return _named(row, columns.messages, "") or ""
    if columns.prompt:
        return _named(row, columns.prompt, "") or ""
    return next((name for name in ("prompt", "question", "messages") if name in row), "")


def _prompt(row: Mapping[str, Any], column: str, columns: Columns) -> tuple[str, tuple[Message, ...]]:
    found = row.get(column)
    if isinstance(found, list) and column:
        messages = tuple(_message(place, one) for place, one in enumerate(found))
        if not messages or messages[-1].role not in ("user", "tool"):
            raise _Bad(f"the messages of `{column}` must end with one of the user, who is to be answered")
        text = next((one.content for one in reversed(messages) if one.role == "user"), "")
        if not text.strip():
            raise _Bad(f"the messages of `{column}` have no text of a user")
        return text, messages
    if not isinstance(found, str) or not found.strip():
        named = columns.messages or columns.prompt
        raise _Bad(f"no text in the column `{named}`" if named else "no text `prompt` or `question`")
    if not _is_text(found):
        raise _Bad(LONE)
    return found, ()


def _message(place: int, found: Any) -> Message:
    """A message; its content may be text, or a list of parts that are text."""
    if not isinstance(found, dict) or found.get("role") not in ROLES:
        raise _Bad(f"message {place + 1} needs a role ({', '.join(ROLES)}) and a content")
    content = found.get("content")
    if isinstance(content, list):
        parts = [one.get("text") if isinstance(one, dict) else None for one in content]
        content = "".join(parts) if all(isinstance(one, str) for one in parts) else None  # type: ignore[arg-type]
    if not isinstance(content, str):
        raise _Bad(f"the content of message {place + 1} is not text (images are not read)")
    if not _is_text(content):
        raise _Bad(LONE)
    return Message(found["role"], content)


# --- answers ---------------------------------------------------------------------------------------------------------


def _gold(row: Mapping[str, Any], how: Reading) -> str:
    """The right answer; "" if the row has none and needs none."""
    column = how.columns.answer
    name = _named(row, column, "answer") if how.needs_answer else (column or "answer")
    reason = reason_of(answer := _answer(row.get(name or "answer")), column or "answer")
    if reason and how.needs_answer:
        raise _Bad(reason)
    return "" if reason else gold_of(answer)


def reason_of(answer: Any, column: str) -> str:
    """Why it is no right answer; empty if it is one."""
    if not isinstance(answer, str) or not gold_of(answer):
        return f"no `{column}`"
    if not _is_text(answer):
        return LONE
    if len(gold_of(answer)) > LONGEST_ANSWER:
        return f"an answer of {len(gold_of(answer))} characters: nothing marks its end (####)"
    return ""


def _answer(answer: Any) -> Any:
    """The answer, which may be a number without quotes. Rejects True, and NaN, which tables hold for missing values."""
    if isinstance(answer, float) and not math.isfinite(answer):
        return None
    return written(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer


# --- tests -----------------------------------------------------------------------------------------------------------


def _tests(row: Mapping[str, Any], columns: Columns) -> str | None:
    """The tests of a row in the canonical form, in whatever form they are published; None if it has none."""
    mapped = {**row, test_rows.OWN: row.get(_named(row, columns.tests, "") or "")} if columns.tests else row
    try:
        found = test_rows.unit_tests_of(mapped)
    except BadTests as error:
        raise _Bad(f"tests that cannot be run: {error}") from error
    return None if found is None else text_of(found)


def _prompt_of_code(row: Mapping[str, Any], columns: Columns) -> tuple[str, str] | None:
    """Column and text of the prompt of a row with tests, with the code or the tests that its authors show; None where
    the profile names the column, or the row has a chat."""
    text = None if columns.prompt or columns.messages else test_rows.prompt_of(row)
    if text is None:
        return None
    if not _is_text(text):
        raise _Bad(LONE)
    return next(name for name in test_rows.PROMPTS if name in row), text


# --- columns ---------------------------------------------------------------------------------------------------------


class _NotJson(ValueError):
    """JSON cannot hold the value; the text is its kind."""


def _named(row: Mapping[str, Any], chosen: str, default: str) -> str | None:
    """The column that the profile names, which must be there, else the default one if it is there."""
    if chosen and chosen not in row:
        raise _Bad(f"no column `{chosen}`; there are {', '.join(map(str, row)) or 'none'}"[:300])
    return chosen or (default if default in row else None)


def _json(column: str, value: Any, levels: int) -> Any:
    """The value in JSON's types. NaN and infinities, by which tables mark what is missing, become None."""
    match value:
        case None | bool():
            return value
        case str():
            if not _is_text(value):
                raise _Bad(f"{LONE} in the column `{column}`")
            return value
        case int():
            return value if SMALLEST <= value <= LARGEST else str(written(value))
        case float():
            return value if math.isfinite(value) else None
        case dict() | list() | tuple() if levels == 0:
            raise _Bad(f"the column `{column}` is nested deeper than {DEEPEST} levels")
        case dict():
            return {str(key): _json(column, one, levels - 1) for key, one in value.items()}
        case list() | tuple():
            return [_json(column, one, levels - 1) for one in value]
    raise _NotJson(type(value).__name__)


def types_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Column -> JSON types of its values, as `text`, `number or nothing`."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, {})[_type_of(value)] = None
    return {name: " or ".join(kinds) for name, kinds in found.items()}


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "number"
        case list():
            return "list"
    return "object"


def _is_text(found: str) -> bool:
    """Whether the text has no lone surrogate, which JSON can escape but no file or tokenizer can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in found)
