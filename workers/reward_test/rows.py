"""Reads the rows that functions are tested on, and the completions of each: given ones, or three obvious ones.

A file of completions has a line {"row" or "prompt", "completion"}: the row's line in the data or its prompt, and a text
or a list of texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Columns, Grpo
from workers.pocket.word_problems.problems import NAME as BUILT_IN
from workers.problems.problem import Problem
from workers.problems.reader import read_problems
from workers.verifiers.answers import read_number

Kind = Literal["given", "right", "wrong", "empty"]


@dataclass(frozen=True)
class Row:
    """A row and its completions. kinds: of each completion, what it is."""

    problem: Problem
    completions: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = field(default=())


def rows_of(data: str, most: int, columns: Columns) -> tuple[Problem, ...]:
    """The first rows of a file as a run would read them, also those without an answer.

    data: a path or a data set; empty for the built-in word problems. most: how many; 0 for all. Raises LonghaulError
    (INPUT).
    """
    found = read_problems(data or BUILT_IN, Grpo(), with_tests=True, columns=columns, needs_answer=False)
    return found.problems[: most or None]


def lines_of(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of a file of JSON lines. Raises LonghaulError (INPUT) for a line that is none."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise refusal(file, error.strerror or str(error), f"ls -l {file}") from error
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise refusal(file, f"line {number} is not JSON: {error}"[:300], f"sed -n {number}p {file}") from error
        if not isinstance(row, dict):
            raise refusal(file, f"line {number} is not an object", f"sed -n {number}p {file}")
        yield number, row


def with_completions(problems: Sequence[Problem], file: Path) -> list[Row]:
    """The rows that the file has completions for, in the order of the data. Raises LonghaulError (INPUT)."""
    by_line = {one.line: one for one in problems}
    by_prompt = {one.prompt.strip(): one for one in problems}
    found: dict[int, list[str]] = {}
    for line, given in lines_of(file):
        texts = given.get("completion", given.get("completions"))
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
            raise refusal(file, f"line {line} has no `completion`, a text or a list of texts", f"sed -n {line}p {file}")
        prompt, row = given.get("prompt"), given.get("row")
        asked = by_prompt.get(prompt.strip()) if isinstance(prompt, str) else by_line.get(row) if row else None
        if asked is None:
            which = f"row {row}" if row else "its prompt"
            why = f"line {line}: {which} is not among the {len(problems)} rows of the data"
            raise refusal(file, why, "the same command with a greater --rows, or with another --data")
        found.setdefault(asked.line, []).extend(texts)
    if not found:
        raise refusal(file, "it holds no completion", f"head -c 300 {file}")
    return [Row(by_line[line], tuple(texts), tuple("given" for _ in texts)) for line, texts in sorted(found.items())]


def with_obvious(problems: Sequence[Problem]) -> list[Row]:
    """Each row with its own answer in a box, an empty text and a wrong answer. (pure)"""
    golds = [one.gold for one in problems if one.gold]
    found = []
    for one in problems:
        texts: dict[Kind, str] = {"wrong": rf"\boxed{{{wrong_answer(one.gold, golds)}}}", "empty": ""}
        if one.gold and not one.has_tests:
            texts = {"right": rf"\boxed{{{one.gold}}}", **texts}
        found.append(Row(one, tuple(texts.values()), tuple(texts)))
    return found


def wrong_answer(gold: str, golds: Sequence[str]) -> str:
    """Another number where the answer is one; else another row's answer. (pure)"""
    number = read_number(gold)
    if number is not None:
        return str(number + 1)
    return next((one for one in golds if one != gold), "no answer")


def refusal(file: Path, why: str, next_command: str) -> LonghaulError:
    return LonghaulError(
        f"{file} cannot be used: {why}", kept="everything", next_command=next_command, exit_code=ExitCode.INPUT
    )
