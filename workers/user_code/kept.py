"""Keeps what failed calls were given, as JSON files of bounded size and number in the attempt's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

FOLDER = "failed-rewards"
MOST_FILES = 50
LONGEST_TEXT = 20_000
"""Characters of each text in a file."""
MOST_ITEMS = 200
"""Of each list and table in a file."""
MOST_DEPTH = 20


class Kept:
    """The folder of one attempt's failed calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._count = 0

    def keep(self, name: str, row: int, call: Struct, why: str, trace: str) -> str:
        """Write the call's file, and return its path; empty: there is no room. Never raises: a full disk must not hide
        the failure."""
        if self._count >= MOST_FILES:
            return ""
        path = self._folder / f"{self._count + 1:03d}-{name.rpartition(':')[2]}-row-{row}.json"
        found = {"function": name, "row": row, "why": why, "traceback": trace, "call": msgspec.to_builtins(call)}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = msgspec.json.format(msgspec.json.encode(bounded(found)), indent=2)
            path.write_bytes(data + b"\n")
        except (OSError, TypeError, ValueError, RecursionError):
            return ""
        self._count += 1
        return os.fspath(path)


def bounded(value: Any, depth: int = 0) -> Any:
    """The value with long texts, lists and tables cut, in what JSON can hold. (pure)"""
    if isinstance(value, str):
        text = value.encode(errors="replace").decode()
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
    if depth == MOST_DEPTH:
        return "..."
    if isinstance(value, dict):
        return {str(bounded(str(key))): bounded(one, depth + 1) for key, one in list(value.items())[:MOST_ITEMS]}
    if isinstance(value, list | tuple):
        return [bounded(one, depth + 1) for one in value[:MOST_ITEMS]]
    return value if value is None or isinstance(value, bool | int | float) else bounded(repr(value))
