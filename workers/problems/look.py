"""Looks at a file or folder of data for `init`: its columns, its first row, how many rows. Judges nothing.

`python -m workers.problems.look` reads its spec from standard input, and reports in lines. `init` guesses from
this; whether the rows are problems is for the reader to say.
"""

from __future__ import annotations

from workers import process

if __name__ == "__main__":
    process.ignore_signals()

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from workers.line_contract import Column, ColumnKind, Looked, LookSpec
from workers.lines import Say, serve
from workers.problems.tables import KINDS, table_files
from workers.verifiers.answers import gold_of

STUDIED = 1000
"""First rows from which the columns are described; the others are only counted."""
EXAMPLE = 200
"""Longest example of a value, in characters."""
SPLIT = "train"
FROM_HUB = "hf download OWNER/NAME --repo-type dataset --local-dir DIR"


def work(spec: LookSpec, say: Say) -> None:
    say(look(Path(spec.path)))


def look(path: Path) -> Looked:
    """Raises LonghaulError (INPUT) for what is not there, cannot be read, or has no rows with columns."""
    files = _files_of(path)
    try:
        rows, count = _table(files) if files[0].suffix in KINDS else _lines(files[0])
    except ImportError as error:
        why = f"reading {files[0].suffix[1:]} files needs pyarrow"
        raise refusal(path, why, 'pip install "pyarrow>=18"   (the extra `arrow`), then the same command') from error
    except (OSError, ValueError) as error:
        raise refusal(path, f"{type(error).__name__}: {error}"[:300], f"ls -l {files[0]}") from error
    if not any(rows):
        raise refusal(path, "no line of it is a JSON object with columns", f"head -c 300 {files[0]}")
    return Looked(str(files[0] if len(files) == 1 else path), count, columns_of(rows))


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns in the order of their first appearance. (pure)"""
    names = dict.fromkeys(name for row in rows for name in row)
    return [_column(name, [row.get(name) for row in rows]) for name in names]


def _column(name: str, values: Sequence[Any]) -> Column:
    there = [value for value in values if value is not None and value == value and value != ""]  # NaN: a table's None
    kinds = {_kind(value) for value in there}
    kind: ColumnKind = kinds.pop() if len(kinds) == 1 else "other" if kinds else "empty"
    texts = [_text(value) for value in there] or [""]
    lengths = [len(text) for text in texts]
    answer = max(len(gold_of(text)) for text in texts)
    return Column(
        name,
        kind,
        filled=len(there) / len(values),
        mean_length=sum(lengths) // len(lengths),
        longest=max(lengths),
        longest_answer=answer,
        example=texts[0][:EXAMPLE],
    )


def _kind(value: Any) -> ColumnKind:
    if isinstance(value, bool):
        return "other"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        is_chat = bool(value) and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in value)
        return "messages" if is_chat else "list"
    return "other"


def _text(value: Any) -> str:
    """A value as text that JSON and a terminal's encoding can hold."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode()


# --- files ------------------------------------------------------------------------------------------------------------


def _files_of(path: Path) -> list[Path]:
    """The file, or those of a folder that hold the rows to train on."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        way = f"ls {_nearest_folder(path)}   then the same command with --data FILE   (from the hub: {FROM_HUB})"
        raise refusal(path, "there is no such file", way)
    lines = sorted(one for one in path.rglob("*.jsonl") if one.is_file())
    of_split = [one for one in lines if SPLIT in one.stem.replace("_", "-").split("-")] or lines
    if len(of_split) == 1:
        return of_split
    if of_split:
        names = ", ".join(str(one.relative_to(path)) for one in of_split[:5])
        raise refusal(
            path, f"it holds several files of JSON lines: {names}", f"the same command with --data {of_split[0]}"
        )
    try:
        tables = table_files(path, SPLIT)
    except ValueError as error:
        raise refusal(path, str(error), "the same command with one of them for --data") from error
    if not tables:
        raise refusal(path, "it holds no .jsonl, .parquet or .arrow file", f"ls {path}")
    return tables


def _lines(file: Path) -> tuple[list[dict[str, Any]], int]:
    """(first rows that are objects, number of lines that are not empty)."""
    rows: list[dict[str, Any]] = []
    count = 0
    with file.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            count += 1
            if count <= STUDIED and (row := _object(line)) is not None:
                rows.append(row)
    return rows, count


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _table(files: Sequence[Path]) -> tuple[list[dict[str, Any]], int]:
    """(first rows, number of rows). Only the first batches are read; parquet tells the number by itself."""
    batches, count = _parquet(files) if files[0].suffix == ".parquet" else _arrow(files)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        rows += batch.slice(0, STUDIED - len(rows)).to_pylist()
        if len(rows) >= STUDIED:
            break
    return rows, count


def _parquet(files: Sequence[Path]) -> tuple[Iterator[Any], int]:
    from pyarrow import parquet

    opened = [parquet.ParquetFile(file) for file in files]
    batches = (batch for file in opened for batch in file.iter_batches(batch_size=STUDIED))
    return batches, sum(file.metadata.num_rows for file in opened)


def _arrow(files: Iterable[Path]) -> tuple[Iterator[Any], int]:
    import pyarrow

    tables = []
    for file in files:
        with pyarrow.memory_map(str(file)) as source:
            tables.append(pyarrow.ipc.open_stream(source).read_all())
    return (batch for table in tables for batch in table.to_batches()), sum(table.num_rows for table in tables)


def _nearest_folder(file: Path) -> Path:
    return next(folder for folder in file.absolute().parents if folder.is_dir())


def refusal(path: Path, why: str, next_command: str) -> LonghaulError:
    return LonghaulError(
        f"the data {path} cannot be used: {why}",
        kept="everything; nothing was written",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )


if __name__ == "__main__":
    serve(LookSpec, work)
