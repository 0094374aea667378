"""Problems with known answers from disk: GSM8K as published, or any JSON lines with a prompt and an answer.

A line is {"question" or "prompt", "answer"}; where an answer has `####`, what follows the last one is the right one.
Nothing is downloaded. Arrow and parquet need a library that is no dependency: such a folder is refused, with the way
out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Grpo
from workers.data.answers import LONGEST_ANSWER, gold_of
from workers.pocket.words import problems as words

MOST_NAMED = 5
"""Bad lines that an error names one by one."""
BINARY = (".arrow", ".parquet")


class Problem(Struct, frozen=True):
    """`number`: its place among the usable ones, which a cursor counts; `line`: in the file, from 1."""

    number: int
    line: int
    prompt: str
    gold: str


class BadLine(Struct, frozen=True):
    line: int
    reason: str


class Problems(Struct, frozen=True):
    """The usable lines in order, and those left out. `digest`: of all prompts and answers in order."""

    path: Path
    problems: tuple[Problem, ...]
    left_out: tuple[BadLine, ...] = ()

    @property
    def digest(self) -> str:
        whole = hashlib.sha256()
        for one in self.problems:
            whole.update(msgspec.json.encode([one.prompt, one.gold]) + b"\n")
        return whole.hexdigest()


def read_problems(path: Path, grpo: Grpo, split: str = "train") -> Problems:
    """All problems of a file, or of the split's file in a folder.

    Lines that cannot be used are refused together, by number, or with `bad_rows = "skip"` left out. Raises
    LonghaulError (INPUT) for them, for a file that is missing or binary, and where nothing usable is left. The path
    `pocket-words` is no file but the built-in word problems, which are made here.
    """
    if str(path) == words.NAME:
        return _built_in()
    file = _file_of(path, split)
    try:
        text = file.read_bytes()
    except OSError as error:
        raise _refusal(file, error.strerror or str(error)) from error
    problems: list[Problem] = []
    bad: list[BadLine] = []
    for line, reason, row in _rows(text):
        if row is None:
            bad.append(BadLine(line, reason))
        else:
            problems.append(Problem(len(problems), line, *row))
    if bad and grpo.bad_rows == "refuse":
        named = "\n  ".join(f"line {one.line}: {one.reason}" for one in bad[:MOST_NAMED])
        more = f"\n  and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        raise _refusal(
            file,
            f"{len(bad)} of {len(bad) + len(problems)} lines are no problems:\n  {named}{more}",
            "correct these lines, or: python -m orchestrator run --set grpo.bad_rows=skip --accept-changes",
        )
    if not problems:
        raise _refusal(file, "it holds no problem with an answer")
    return Problems(file, tuple(problems), tuple(bad))


def drop_long(problems: Problems, count_tokens: Callable[[str], int], max_prompt_tokens: int) -> Problems:
    """Without the problems whose prompts are too long; these are left out by line, never cut."""
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
    """The first `count` of them; 0: all."""
    return msgspec.structs.replace(problems, problems=problems.problems[:count]) if count else problems


def summary(problems: Problems) -> str:
    """One line for a log: how many, and what was left out."""
    text = f"{len(problems.problems)} problems from {problems.path.name}"
    if problems.left_out:
        lines = [str(one.line) for one in problems.left_out[:MOST_NAMED]]
        lines += ["..."] if len(problems.left_out) > MOST_NAMED else []
        text += f"; {len(problems.left_out)} left out (line {', '.join(lines)})"
    return text


def _built_in() -> Problems:
    stories = enumerate(words.draw_problems())
    return Problems(
        Path(words.NAME), tuple(Problem(number, number + 1, story.text, str(story.answer)) for number, story in stories)
    )


def _rows(text: bytes) -> Iterator[tuple[int, str, tuple[str, str] | None]]:
    """(line, why it cannot be used, prompt and answer). Empty lines are none."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"no JSON: {error}"[:200], None
            continue
        reason = _reason(row)
        yield number, reason, None if reason else (_prompt_of(row), gold_of(_answer_of(row)))


def _prompt_of(row: dict[str, Any]) -> Any:
    return row.get("prompt", row.get("question"))


def _answer_of(row: dict[str, Any]) -> Any:
    """A number may stand without quotes; True is none."""
    answer = row.get("answer")
    return str(answer) if isinstance(answer, int | float) and not isinstance(answer, bool) else answer


def _reason(row: Any) -> str:
    """Why a line is no problem; empty if it is one."""
    if not isinstance(row, dict):
        return "not an object"
    prompt, answer = _prompt_of(row), _answer_of(row)
    if not isinstance(prompt, str) or not prompt.strip():
        return "no text `prompt` or `question`"
    if not isinstance(answer, str) or not gold_of(answer):
        return "no `answer`"
    if len(gold_of(answer)) > LONGEST_ANSWER:
        return f"an answer of {len(gold_of(answer))} characters: nothing marks its end (####)"
    return ""


def _file_of(path: Path, split: str) -> Path:
    """The file itself, or the one file of lines in a folder that is of this split."""
    if not path.is_dir():
        return path
    files = sorted(one for one in path.rglob("*.jsonl") if one.is_file())
    of_split = [one for one in files if split in one.stem.replace("_", "-").split("-")] or (
        files if len(files) == 1 else []
    )
    if len(of_split) == 1:
        return of_split[0]
    if not files and (binary := sorted(one for one in path.rglob("*") if one.suffix in BINARY)):
        raise _arrow(path, binary, split)
    found = ", ".join(str(one.relative_to(path)) for one in files[:MOST_NAMED]) or "none"
    raise _refusal(path, f"no single file of JSON lines in it is of the split {split} (found: {found})", f"ls {path}")


def _arrow(path: Path, binary: Sequence[Path], split: str) -> LonghaulError:
    """The library `datasets` writes both layouts back as lines; only it can say which columns are there."""
    parquet = next((one for one in binary if one.suffix == ".parquet" and split in one.stem), binary[0])
    read = (
        f'load_dataset("parquet", data_files="{parquet}", split="train")'
        if parquet.suffix == ".parquet"
        else f'load_from_disk("{path}")'
    )
    return _refusal(
        path,
        f"it holds {parquet.suffix[1:]} files, which need pyarrow; this program reads JSON lines and brings no reader",
        f"pip install datasets && python -c 'from datasets import *; {read}.to_json(\"{split}.jsonl\")'",
    )


def _refusal(path: Path, why: str, next_command: str = "") -> LonghaulError:
    return LonghaulError(
        f"the problems {path} cannot be used: {why}",
        kept="everything; nothing was started",
        next_command=next_command or f"head -c 300 {path}",
        exit_code=ExitCode.INPUT,
    )
