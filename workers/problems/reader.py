"""Reads problems: GSM8K as published, JSON, JSON lines, parquet and Arrow files, or data sets of the Hugging Face hub.

A row is {"question" or "prompt" or "messages", "answer"}; the profile may name other columns. If the answer contains
`####`, the text after the last one is the right answer. Where programs are judged, a row may have tests in place of the
answer, in any form of `test_rows`. All other columns are kept. Nothing is downloaded unless the name begins with `hf:`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Columns, Grpo
from workers.pocket.word_problems import problems as word_problems
from workers.problems.hub import PREFIX, read_hub
from workers.problems.problem import BadLine, Problem, Problems
from workers.problems.rows import Reading, parsed
from workers.problems.tables import KINDS, read_tables, table_files

DESCRIPTIONS = ("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json")
"""Files beside a data set that hold no rows."""
MOST_NAMED = 5
"""How many bad lines an error lists."""


DEFAULT_COLUMNS = Columns()
Rows = Iterator[tuple[int, str, Any]]
"""(line, why it cannot be read, what it holds)."""


def read_problems(
    path: Path | str,
    grpo: Grpo,
    split: str = "train",
    *,
    with_tests: bool = False,
    columns: Columns = DEFAULT_COLUMNS,
    needs_answer: bool = True,
    needs_prompt: bool = True,
    revision: str = "",
) -> Problems:
    """All problems of a file, of the split's file in a folder, of the split in a data set's folder, or of the hub.

    with_tests, columns, needs_answer, needs_prompt: as in `Reading`. revision: the commit to read of a data set of the
    hub.

    Unusable rows are refused together, by number, or skipped with `bad_rows = "skip"`. Raises LonghaulError (INPUT)
    for them, for a missing or binary file, and if nothing usable is left. The path `pocket-words` is not a file but the
    built-in word problems, which are generated here.
    """
    if str(path) == word_problems.NAME:
        return _built_in()
    file, rows, not_json, revisions = _source(str(path), split, revision)
    how = Reading(columns, with_tests, needs_answer, needs_prompt)
    return problems_of_rows(file, rows, grpo, how, not_json, revisions)


def problems_of_rows(
    file: Path,
    rows: Rows,
    grpo: Grpo,
    how: Reading,
    not_json: dict[str, str] | None = None,
    revisions: dict[str, str] | None = None,
) -> Problems:
    """The problems of these rows. file: for messages. not_json, revisions: as in `Problems`. Raises LonghaulError
    (INPUT) like `read_problems`."""
    not_json = not_json or {}
    problems: list[Problem] = []
    bad: list[BadLine] = []
    for line, reason, row in rows:
        found = reason or parsed(row, how)
        if isinstance(found, str):
            bad.append(BadLine(line, found))
            continue
        not_json |= found.not_json
        problems.append(
            Problem(len(problems), line, found.prompt, found.gold, found.has_tests, found.messages, found.columns)
        )
    if bad and grpo.bad_rows == "refuse":
        raise _refusal(
            file,
            f"{len(bad)} of {len(bad) + len(problems)} lines are no problems:{_by_line(bad)}",
            "correct these lines, or: python -m orchestrator run --set grpo.bad_rows=skip --accept-changes",
        )
    if not problems:
        left_out = f'; {len(bad)} lines were left out (grpo.bad_rows = "skip"):{_by_line(bad)}' if bad else ""
        raise _refusal(file, f"it holds no problem{' with an answer' if how.needs_answer else ''}{left_out}")
    if not_json:  # of some rows only: a column is there for all rows or for none
        problems = [msgspec.structs.replace(one, columns=_without(one.columns, not_json)) for one in problems]
    return Problems(file, tuple(problems), tuple(bad), not_json, revisions or {})


def _without(columns: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name not in names}


def _source(path: str, split: str, revision: str) -> tuple[Path, Rows, dict[str, str], dict[str, str]]:
    """What a name leads to: its file, its rows, the columns that no JSON can hold, and the commit of a hub's data."""
    if path.startswith(PREFIX):
        rows, left_out, commit = read_hub(path, split, revision)
        return Path(path), ((number, "", row) for number, row in enumerate(rows, start=1)), left_out, {path: commit}
    place = Path(path).expanduser()
    if tables := _tables_of(place, split):
        found, left_out = _table_rows(place, tables)
        return place, found, left_out, {}
    file = _file_of(place, split)
    return file, _rows(file, _bytes_of(file)), {}, {}


def _by_line(bad: list[BadLine]) -> str:
    """The first of them, one per line, and how many more there are. (pure)"""
    named = [f"\n  line {one.line}: {one.reason}" for one in bad[:MOST_NAMED]]
    return "".join([*named, *([f"\n  and {len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else [])])


def drop_long(problems: Problems, count_tokens: Callable[[Problem], int], max_prompt_tokens: int) -> Problems:
    """The problems whose prompts fit. Longer ones are skipped and listed by line, never truncated."""
    kept: list[Problem] = []
    dropped: list[BadLine] = []
    for one in problems.problems:
        tokens = count_tokens(one)
        if tokens <= max_prompt_tokens:
            kept.append(msgspec.structs.replace(one, number=len(kept)))
        else:
            dropped.append(_too_long(one, tokens, max_prompt_tokens))
    if not kept:
        raise _refusal(
            problems.path,
            f"all {len(dropped)} prompts have more than {max_prompt_tokens} tokens",
            "the same command with a larger --set sampling.max_prompt_tokens=N",
        )
    return msgspec.structs.replace(problems, problems=tuple(kept), left_out=(*problems.left_out, *dropped))


def _too_long(problem: Problem, tokens: int, allowed: int) -> BadLine:
    return BadLine(problem.line, f"its prompt has {tokens} tokens, {allowed} are allowed", problem.source)


def first(problems: Problems, count: int) -> Problems:
    """The first `count` problems; 0: all."""
    return msgspec.structs.replace(problems, problems=problems.problems[:count]) if count else problems


def summary(problems: Problems) -> str:
    """One line for a log: how many problems, of which files and commits, and what was skipped."""
    text = f"{len(problems.problems)} problems from {_where(problems)}"
    if problems.left_out:
        lines = [f"{one.source}:{one.line}".lstrip(":") for one in problems.left_out[:MOST_NAMED]]
        lines += ["..."] if len(problems.left_out) > MOST_NAMED else []
        text += f"; {len(problems.left_out)} left out (line {', '.join(lines)})"
    if problems.not_json:
        columns = ", ".join(f"{name} ({kind})" for name, kind in problems.not_json.items())
        text += f"; columns that JSON cannot hold are left out: {columns}"
    return text


def _where(problems: Problems) -> str:
    counts = Counter(one.source for one in problems.problems)
    if "" in counts or not counts:
        commits = list(problems.revisions.items())
        return f"{commits[0][0]} at {commits[0][1]}" if commits else problems.path.name
    return ", ".join(
        f"{name} ({count})" + (f" at {problems.revisions[name]}" if name in problems.revisions else "")
        for name, count in counts.items()
    )


def _built_in() -> Problems:
    stories = enumerate(word_problems.draw_problems())
    return Problems(
        Path(word_problems.NAME),
        tuple(Problem(number, number + 1, story.text, str(story.answer)) for number, story in stories),
    )


def _rows(file: Path, text: bytes) -> Rows:
    """The rows of JSON lines, without empty lines, or of one JSON list."""
    if file.suffix == ".json" and text.lstrip().startswith(b"["):
        try:
            rows = _decoded(text)
        except (ValueError, RecursionError) as error:
            raise _refusal(file, f"not JSON: {error}"[:300]) from error
        yield from ((number, "", row) for number, row in enumerate(rows, start=1))
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _decoded(line)
        except _Twice as error:
            yield number, str(error), None
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON: {error}"[:200], None
        else:
            yield number, "", row


class _Twice(ValueError):
    """An object has a key twice; nothing says which value is meant."""


def _decoded(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(f"the column `{next(name for name in names if names.count(name) > 1)}` is there twice"[:200])
    return found


def _table_rows(path: Path, files: Sequence[Path]) -> tuple[Rows, dict[str, str]]:
    """The same for the rows of tables, and the columns that are left out."""
    try:
        rows, left_out = read_tables(files)
    except ImportError as error:
        why = f"reading {files[0].suffix[1:]} files needs pyarrow"
        raise _refusal(path, why, 'pip install "pyarrow>=18"   (the extra `arrow`), then the same command') from error
    except (OSError, ValueError) as error:
        raise _refusal(path, f"{type(error).__name__}: {error}"[:300], f"ls -l {files[0].parent}") from error
    return ((number, "", row) for number, row in enumerate(rows, start=1)), left_out


def _file_of(path: Path, split: str) -> Path:
    """The file itself, or a folder's only file of JSON lines for this split."""
    if not path.is_dir():
        return path
    files = sorted(one for one in path.rglob("*.jsonl") if one.is_file()) or sorted(
        one for one in path.rglob("*.json") if one.is_file() and one.name not in DESCRIPTIONS
    )
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
