"""Removes a checkpoint that the store marked `deleting`: renames it to `.trash-*`, then deletes it. Safe to repeat.

state/retention.py decides what to remove. The guards here hold whatever it decides.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.checkpoint import MANIFEST, problem_with
from state.crash import crash_point
from state.layout import RunDir

TRASH_PREFIX = ".trash-"


def discard(run: RunDir, path: Path, head: Path) -> None:
    """Remove the checkpoint directory `path`, if it still exists.

    Raises ValueError for the head, a symbolic link, and anything not directly in checkpoints/; LonghaulError (STORE) if
    the head is damaged, because this checkpoint may have to replace it.
    """
    if path.is_symlink() or path.parent.resolve() != run.checkpoints.resolve() or path.name.startswith("."):
        raise ValueError(f"refused to remove {path}: not a checkpoint directory of {run.root}")
    if path.resolve() == head.resolve():
        raise ValueError(f"refused to remove {path}: it is the head")
    if not path.exists():
        return
    problem = problem_with(head, deep=False)
    if problem:
        raise LonghaulError(
            f"the head {head.name} is damaged ({problem}); no checkpoint was removed",
            kept="every checkpoint, unchanged",
            next_command="python -m orchestrator run   (falls back to the newest valid checkpoint)",
            exit_code=ExitCode.STORE,
        )
    trashed = run.checkpoints / f"{TRASH_PREFIX}{path.name}"
    _remove(run, trashed)
    durable.rename_dir(path, trashed)
    crash_point("prune.after_rename")
    _remove(run, trashed)


def empty(run: RunDir) -> None:
    """Finish removals that a crash interrupted."""
    for path in sorted(run.checkpoints.glob(f"{TRASH_PREFIX}*")):
        _remove(run, path)


def _remove(run: RunDir, trashed: Path) -> None:
    if trashed.is_symlink():  # remove the link, not its target
        trashed.unlink()
    if not os.path.lexists(trashed):
        return
    with suppress(FileNotFoundError):  # first, so that a half-removed directory never looks valid
        (trashed / MANIFEST).unlink()
    crash_point("prune.mid_remove")
    durable.remove_tree_or_leave(trashed, run.checkpoints)
