"""Removes a checkpoint that the store has marked `deleting`: rename to `.trash-*`, then remove; repeats are harmless.

What to remove is decided in state/retention.py. Here are the guards that hold whatever was decided.
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
    """Remove the checkpoint directory `path`; nothing where it is gone already.

    Raises ValueError for the head, a symbolic link, and anything that is not directly in checkpoints/; LonghaulError
    (STORE) where the head itself is not whole: then this may be the one to fall back to.
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
    if trashed.is_symlink():  # the link goes; what it points to is none of ours
        trashed.unlink()
    if not os.path.lexists(trashed):
        return
    with suppress(FileNotFoundError):  # first, so that a half-removed directory can never look whole
        (trashed / MANIFEST).unlink()
    crash_point("prune.mid_remove")
    durable.remove_tree(trashed, run.checkpoints)
