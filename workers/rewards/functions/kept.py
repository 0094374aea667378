"""Keeps what failed calls were given, as JSON files of bounded size and number in the attempt's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError

FOLDER = "failed-rewards"
MOST_FILES = 50
LONGEST_TEXT = 20_000
"""Characters of each text in a file."""
MOST_ITEMS = 200
"""Of each list and table in a file."""
MOST_DEPTH = 20


class Failure(Struct, frozen=True):
    """A function that gave no reward for a rollout.

    function: as the profile names it. row: line of the data file, which `source` names in a mixture. why: a clause
    without a subject. path: the file with what it was given; empty: MOST_FILES are kept already, or the disk is full.
    """

    function: str
    row: int
    why: str
    path: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        where = f"; {self.path} has what it was given" if self.path else ""
        return f"the reward {self.function} failed on row {self.row} of {self.source or 'the data'}: {self.why}{where}"

    def error(self) -> LonghaulError:
        """The end of the run, where the profile says so."""
        return LonghaulError(
            self.text,
            kept="the head, unchanged; the rollouts of this step are drawn again on resume",
            next_command=f"python -m orchestrator rewards test {self.function}   then resume; or resume with "
            "--set grpo.reward.on_error=skip --accept-changes",
            exit_code=ExitCode.REWARD,
        )


class Kept:
    """The folder of one attempt's failed calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._count = 0

    def keep(self, name: str, row: int, call: Struct, why: str, trace: str, source: str = "") -> Failure:
        """Write the call's file, if there is room. Never raises: a full disk must not hide the failure."""
        failure = Failure(name, row, why, source=source)
        if self._count >= MOST_FILES:
            return failure
        path = self._folder / f"{self._count + 1:03d}-{name.rpartition(':')[2]}-row-{row}.json"
        found = {"function": name, "row": row, "why": why, "traceback": trace, "call": msgspec.to_builtins(call)}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = msgspec.json.format(msgspec.json.encode(bounded(found)), indent=2)
            path.write_bytes(data + b"\n")
        except (OSError, TypeError, ValueError, RecursionError):
            return failure
        self._count += 1
        return Failure(name, row, why, os.fspath(path), source)


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
