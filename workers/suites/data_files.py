"""The published data files that suites read: where to look for them, and the error for a missing one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import ExitCode, LonghaulError

VARIABLE = "LONGHAUL_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file as its authors publish it, under our name for it."""

    name: str
    url: str
    license: str
    fields: tuple[str, ...]
    """Text fields that each line must have."""
    others: tuple[str, ...] = ()
    """Fields of any other type that each line must have."""


def data_folder(named: str) -> Path | None:
    """The folder that was named, else that of the environment variable; None if neither is set."""
    text = named or os.environ.get(VARIABLE, "")
    return Path(text).expanduser() if text else None


def is_at_hand(file: DataFile, folder: Path | None) -> bool:
    return folder is not None and (folder / file.name).is_file()


def read_rows(file: DataFile, folder: Path | None) -> list[Mapping[str, Any]]:
    """All lines, in order. Raises LonghaulError (INPUT) saying what is missing, where to get it and where to put it."""
    if folder is None:
        raise _missing(file, f"no folder is named for {file.name}", Path("data"), name_it=True)
    path = folder / file.name
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise _missing(file, f"the data file {path} is missing", folder, name_it=False) from None
    except OSError as error:
        raise _bad(path, error.strerror or str(error), f"ls -ld {path}") from error
    rows = [_row(path, number, line, file) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise _bad(path, "holds no examples")
    return rows


def _row(path: Path, number: int, line: bytes, file: DataFile) -> Mapping[str, Any]:
    try:
        row: Any = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise _bad(path, f"line {number} is not valid JSON: {error}") from error
    missing = [field for field in file.fields if not isinstance(row, dict) or not isinstance(row.get(field), str)]
    if missing:
        raise _bad(path, f"line {number} has no text `{missing[0]}`")
    if absent := [field for field in file.others if field not in row]:
        raise _bad(path, f"line {number} has no `{absent[0]}`")
    return {field: row[field] for field in (*file.fields, *file.others)}


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _missing(file: DataFile, what: str, folder: Path, *, name_it: bool) -> LonghaulError:
    named = f"then set {VARIABLE}={folder} (or validation.data in the profile; evaluate takes --data {folder})"
    then = named if name_it else "then the same command again"
    return LonghaulError(
        f"{what} (licence {file.license}, not part of this program)",
        kept="everything; nothing was asked yet",
        next_command=f"download {file.url} to {folder / file.name}, {then}",
        exit_code=ExitCode.INPUT,
    )


def _bad(path: Path, why: str, next_command: str = "") -> LonghaulError:
    return LonghaulError(
        f"the data file {path} cannot be used: {why}",
        kept="everything; nothing was asked yet",
        next_command=next_command or f"head -c 300 {path}   (then download it again)",
        exit_code=ExitCode.INPUT,
    )
