"""Reads problems with known answers: GSM8K as published, or any JSON lines with a prompt and an answer.

A line is {"question" or "prompt", "answer"}. If the answer contains `####`, the text after the last one is the right
answer. Where programs are judged, a line may have "tests" in place of the answer: statements, or objects of "input" and
"output", as the code server takes them. Rows of parquet and Arrow files count as lines. Nothing is downloaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Grpo
from workers.pocket.word_problems import problems as word_problems
from workers.problems.problem import BadLine, Problem, Problems
from workers.problems.tables import KINDS, read_tables, table_files
from workers.sandbox.server.protocols import BadRequest, call_for, list_of
from workers.verifiers.answers import LONGEST_ANSWER, gold_of, written

LONE = "a lone surrogate character"
MOST_NAMED = 5
"""How many bad lines an error lists."""


def read_problems(path: Path, grpo: Grpo, split: str = "train", *, with_tests: bool = False) -> Problems:
    """All problems of a file, of the split's file in a folder, or of the split in a data set's folder.

    with_tests: lines with tests are problems too.

    Unusable lines are refused together, by number, or skipped with `bad_rows = "skip"`. Raises LonghaulError (INPUT)
    for them, for a missing or binary file, and if nothing usable is left. The path `pocket-words` is not a file but the
    built-in word problems, which are generated here.
    """
    if str(path) == word_problems.NAME:
        return _built_in()
    tables = _tables_of(path, split)
    file = path if tables else _file_of(path, split)
    rows = _table_rows(path, tables) if tables else _rows(_bytes_of(file))
    read = _with_tests if with_tests else _checked
    problems: list[Problem] = []
    bad: list[BadLine] = []
    for line, reason, row in rows:
        found = reason or read(row)
        if isinstance(found, str):
            bad.append(BadLine(line, found))
        else:
            problems.append(Problem(len(problems), line, *found))
    if bad and grpo.bad_rows == "refuse":
        raise _refusal(
            file,
            f"{len(bad)} of {len(bad) + len(problems)} lines are no problems:{_by_line(bad)}",
            "correct these lines, or: python -m orchestrator run --set grpo.bad_rows=skip --accept-changes",
        )
    if not problems:
        left_out = f'; {len(bad)} lines were left out (grpo.bad_rows = "skip"):{_by_line(bad)}' if bad else ""
        raise _refusal(file, f"it holds no problem with an answer{left_out}")
    return Problems(file, tuple(problems), tuple(bad))


def _by_line(bad: list[BadLine]) -> str:
    """The first of them, one per line, and how many more there are. (pure)"""
    named = [f"\n  line {one.line}: {one.reason}" for one in bad[:MOST_NAMED]]
    return "".join([*named, *([f"\n  and {len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else [])])


def drop_long(problems: Problems, count_tokens: Callable[[str], int], max_prompt_tokens: int) -> Problems:
    """The problems whose prompts fit. Longer ones are skipped and listed by line, never truncated."""
    kept: list[Problem] = []
    dropped: list[BadLine] = []
    for one in problems.problems:
        tokens = count_tokens(one.prompt)
        if tokens <= max_prompt_tokens:
            kept.append(msgspec.structs.replace(one, number=len(kept)))
        else:
            dropped.append(BadLine(one.line, f"its prompt has {tokens} tokens, {max_prompt_tokens} are allowed"))
    if not kept:
        raise _refusal(
            problems.path,
            f"all {len(dropped)} prompts have more than {max_prompt_tokens} tokens",
            "the same command with a larger --set sampling.max_prompt_tokens=N",
        )
    return Problems(problems.path, tuple(kept), (*problems.left_out, *dropped))


def first(problems: Problems, count: int) -> Problems:
    """The first `count` problems; 0: all."""
    return msgspec.structs.replace(problems, problems=problems.problems[:count]) if count else problems


def summary(problems: Problems) -> str:
    """One line for a log: how many problems, and what was skipped."""
    text = f"{len(problems.problems)} problems from {problems.path.name}"
    if problems.left_out:
        lines = [str(one.line) for one in problems.left_out[:MOST_NAMED]]
        lines += ["..."] if len(problems.left_out) > MOST_NAMED else []
        text += f"; {len(problems.left_out)} left out (line {', '.join(lines)})"
    return text


def _built_in() -> Problems:
    stories = enumerate(word_problems.draw_problems())
    return Problems(
        Path(word_problems.NAME),
        tuple(Problem(number, number + 1, story.text, str(story.answer)) for number, story in stories),
    )


def _rows(text: bytes) -> Iterator[tuple[int, str, Any]]:
    """(line, why it cannot be read, what it holds). Skips empty lines."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON: {error}"[:200], None
            continue
        yield number, "", row


def _table_rows(path: Path, files: Sequence[Path]) -> Iterator[tuple[int, str, Any]]:
    """The same for the rows of tables."""
    try:
        for number, row in enumerate(read_tables(files), start=1):
            yield number, "", row
    except ImportError as error:
        why = f"reading {files[0].suffix[1:]} files needs pyarrow"
        raise _refusal(path, why, 'pip install "pyarrow>=18"   (the extra `arrow`), then the same command') from error
    except (OSError, ValueError) as error:
        raise _refusal(path, f"{type(error).__name__}: {error}"[:300], f"ls -l {files[0].parent}") from error


def _checked(row: Any) -> tuple[str, str] | str:
    """Prompt and answer, or why the row is no problem."""
    return _reason(row) or (_prompt_of(row), gold_of(_answer_of(row)))


def _with_tests(row: Any) -> tuple[str, str, bool] | tuple[str, str] | str:
    """The same, with tests in place of the answer where there are any."""
    if not isinstance(row, dict) or row.get("tests") is None:
        return _checked(row)
    try:
        call_for(row["tests"])
        tests = json.dumps(list_of(row["tests"]))
    except BadRequest as error:
        return f"tests that cannot be run: {error}"
    return _prompt_reason(_prompt_of(row)) or (_prompt_of(row), tests, True)


def _prompt_of(row: dict[str, Any]) -> Any:
    return row.get("prompt", row.get("question"))


def _answer_of(row: dict[str, Any]) -> Any:
    """The answer, which may be a number without quotes. Rejects True, and NaN, which tables hold for missing values."""
    answer = row.get("answer")
    if isinstance(answer, float) and not math.isfinite(answer):
        return None
    return written(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer


def _reason(row: Any) -> str:
    """Why a line is not a problem; empty if it is one."""
    if not isinstance(row, dict):
        return "not an object"
    answer = _answer_of(row)
    if reason := _prompt_reason(_prompt_of(row)):
        return reason
    if not isinstance(answer, str) or not gold_of(answer):
        return "no `answer`"
    if not _is_text(answer):
        return LONE
    if len(gold_of(answer)) > LONGEST_ANSWER:
        return f"an answer of {len(gold_of(answer))} characters: nothing marks its end (####)"
    return ""


def _prompt_reason(prompt: Any) -> str:
    if not isinstance(prompt, str) or not prompt.strip():
        return "no text `prompt` or `question`"
    return "" if _is_text(prompt) else LONE


def _is_text(found: str) -> bool:
    """Whether the text has no lone surrogate, which JSON can escape but no file or tokenizer can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in found)


def _file_of(path: Path, split: str) -> Path:
    """The file itself, or a folder's only file of JSON lines for this split."""
    if not path.is_dir():
        return path
    files = sorted(one for one in path.rglob("*.jsonl") if one.is_file())
    of_split = [one for one in files if split in one.stem.replace("_", "-").split("-")] or (
        files if len(files) == 1 else []
    )
    if len(of_split) == 1:
        return of_split[0]
    found = ", ".join(str(one.relative_to(path)) for one in files[:MOST_NAMED]) or "none"
    raise _refusal(path, f"no single file of JSON lines in it is of the split {split} (found: {found})", f"ls {path}")


def _tables_of(path: Path, split: str) -> list[Path]:
    """The parquet or Arrow files to read; none if the folder also has JSON lines."""
    if not path.is_dir():
        return [path] if path.suffix in KINDS and path.is_file() else []
    if any(path.rglob("*.jsonl")):
        return []
    try:
        return table_files(path, split)
    except ValueError as error:
        raise _refusal(path, str(error), "the same command with one of them for --set data.tasks=...") from error


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        way = f"ls {_nearest_folder(file)}   then: python -m orchestrator run --set data.tasks=FILE"
        raise _refusal(file, "there is no such file", way) from error
    except OSError as error:
        raise _refusal(file, error.strerror or str(error), f"ls -ld {file}") from error


def _nearest_folder(file: Path) -> Path:
    """The file's folder, or its nearest existing ancestor."""
    return next(folder for folder in file.absolute().parents if folder.is_dir())


def _refusal(path: Path, why: str, next_command: str = "") -> LonghaulError:
    return LonghaulError(
        f"the problems {path} cannot be used: {why}",
        kept="everything; nothing was started",
        next_command=next_command or f"head -c 300 {path}",
        exit_code=ExitCode.INPUT,
    )
