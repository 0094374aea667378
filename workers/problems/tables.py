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
COLUMNS = ("prompt", "question", "answer")
"""The only columns that are read."""


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


def read_tables(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The rows of all files, in order. Raises ImportError without pyarrow, OSError or ValueError for a torn file."""
    import_module("pyarrow")
    for file in files:
        table = _parquet(file) if file.suffix == ".parquet" else _arrow(file)
        yield from table.select([name for name in table.column_names if name in COLUMNS]).to_pylist()


def _parquet(file: Path) -> Any:
    return import_module("pyarrow.parquet").ParquetFile(file).read()


def _arrow(file: Path) -> Any:
    arrow: Any = import_module("pyarrow")
    with arrow.memory_map(str(file)) as source:
        return arrow.ipc.open_stream(source).read_all()
