"""Reads data sets in the formats of the library `datasets`: parquet files of a hub folder, Arrow files of
`save_to_disk`.

pyarrow (extra `arrow`) does the reading; it is imported here, and only when such a file is requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

KINDS = (".parquet", ".arrow")


def table_files(folder: Path, split: str) -> list[Path]:
    """The files of a split, sorted by name; empty if there are none.

    The file (`train-00000-of-00002.parquet`) or its folder (`train/data-00000-of-00001.arrow`) names the split; a data
    set saved without splits names none. Raises ValueError, with their names, if several folders hold the split.
    """
    files = sorted(one for one in folder.rglob("*") if one.suffix in KINDS and one.is_file())
    found = [one for one in files if _is_of(one.relative_to(folder), split)]
    if not found:
        found = [one for one in files if one.parent == folder and one.name.startswith("data-")]
    folders = sorted({one.parent for one in found})
    if len(folders) > 1:
        raise ValueError(f"several folders hold the split {split}: {', '.join(map(str, folders))}")
    return found


def _is_of(file: Path, split: str) -> bool:
    return split in (*file.stem.replace("_", "-").split("-"), *file.parent.parts)


def read_tables(files: Sequence[Path]) -> tuple[Iterator[dict[str, Any]], dict[str, str]]:
    """The rows of all files, in order, and the columns that are left out, because they hold bytes, with their type.

    Raises ImportError without pyarrow, OSError or ValueError for a torn file, ValueError for a column that is there
    twice.
    """
    import_module("pyarrow")
    tables = [_parquet(file) if file.suffix == ".parquet" else _arrow(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if twice := [name for name in table.column_names if table.column_names.count(name) > 1]:
            raise ValueError(f"{file.name} has the column {twice[0]!r} twice")
    left_out = {
        field.name: str(field.type)[:60] for table in tables for field in table.schema if _has_bytes(field.type)
    }
    kept = [table.select([name for name in table.column_names if name not in left_out]) for table in tables]
    return (row for table in kept for batch in table.to_batches() for row in batch.to_pylist()), left_out


def _has_bytes(kind: Any) -> bool:
    """Whether values of this type hold bytes, as images do."""
    types = import_module("pyarrow").types
    if types.is_nested(kind):
        return any(_has_bytes(kind.field(place).type) for place in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _parquet(file: Path) -> Any:
    return import_module("pyarrow.parquet").ParquetFile(file).read()


def _arrow(file: Path) -> Any:
    arrow: Any = import_module("pyarrow")
    with arrow.memory_map(str(file)) as source:
        return arrow.ipc.open_stream(source).read_all()
