"""Finds the run a command refers to: the named one, or else the newest."""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state.layout import HALF, RunDir
from state.opening import read_only
from state.states import UNFINISHED


@dataclass(frozen=True)
class Found:
    """A run on disk, according to its row in the store."""

    run: RunDir
    state: str
    heartbeat_at: float
    """UTC seconds."""


def find_run(args: argparse.Namespace) -> RunDir:
    """The run `args.run` under `args.runs`, or without a name the one with the newest heartbeat.

    Raises LonghaulError(INPUT), which lists the existing names, if there is none.
    """
    root: Path = args.runs
    if args.run is not None:
        named = RunDir(root / args.run)
        if named.store.exists():
            return named
        raise _no_such_run(root, args.run)
    found = all_runs(root)
    if not found:
        raise LonghaulError(
            f"there is no run in {root}",
            kept="nothing was changed",
            next_command="python -m orchestrator run",
            exit_code=ExitCode.INPUT,
        )
    return found[0].run


def newest_unfinished(root: Path) -> RunDir | None:
    """The resumable run with the newest heartbeat; None if there is none."""
    return next((found.run for found in all_runs(root) if found.state in UNFINISHED), None)


def all_runs(root: Path) -> list[Found]:
    """Every readable run, newest first, then by name."""
    if not root.is_dir():
        return []
    whole = [path for path in sorted(root.iterdir()) if not path.name.startswith(HALF)]
    found = [facts for path in whole if (facts := _look(RunDir(path))) is not None]
    return sorted(found, key=lambda facts: facts.heartbeat_at, reverse=True)


def _look(run: RunDir) -> Found | None:
    try:
        if not run.store.is_file():
            return None
        with closing(read_only(run.store)) as connection:
            row = connection.execute("SELECT state, heartbeat_at FROM runs").fetchone()
    except (sqlite3.Error, OSError):
        return None  # damaged, incomplete or another user's: skip it; a command that names it reports the error
    return Found(run, str(row[0]), float(row[1])) if row else None


def _no_such_run(root: Path, name: str) -> LonghaulError:
    names = [found.run.name for found in all_runs(root)]
    if names:
        what = f"there is no run '{name}' in {root}; there are: {', '.join(names[:8])}"
        command = f"python -m orchestrator status --run {names[0]}"
    else:
        what, command = f"there is no run '{name}' in {root}", "python -m orchestrator run"
    return LonghaulError(what, kept="nothing was changed", next_command=command, exit_code=ExitCode.INPUT)
