"""The run directory itself: found behind a link, made durably, usable by this user, with its ballast."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from orchestrator.path_errors import NAME_ERRORS
from profiles.disk import BALLAST_BYTES
from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.layout import RunDir
from state.opening import LONGEST_ROOT, too_long

ROOM_BYTES = 2 * BALLAST_BYTES
"""Ballast is made only where as much again stays free."""


def behind_link(run: RunDir) -> RunDir:
    """The run in the directory that a symbolic link names now; whatever the link says later, it stays this one."""
    return RunDir(run.root.resolve(), link=run.root) if run.root.is_symlink() else run


def make_directory(run: RunDir) -> None:
    """Create it, durably with its parents. Raises LonghaulError (PERMISSION, DISK, INPUT) where it cannot be used."""
    root = run.root
    if len(os.fsencode(root.resolve())) > LONGEST_ROOT:
        raise too_long(run)
    try:
        durable.create_dirs(root)
        if os.statvfs(root).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        for folder in (root, run.checkpoints, run.cycles):
            if folder == root or folder.exists():
                check_ours(folder)
    except OSError as error:
        if error.errno in NAME_ERRORS:
            raise
        raise LonghaulError(
            f"the run directory {root} cannot be used: {error.strerror}{_which(error, root)}",
            kept="nothing was changed",
            next_command=f"ls -ld {root.parent} {root} {root}/*",
            exit_code=ExitCode.PERMISSION if error.errno in durable.PERMISSION_ERRORS else ExitCode.DISK,
        ) from error


def check_ours(folder: Path) -> None:
    """Raises PermissionError unless the folder is this user's own, to read and to write."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "not readable and writable", str(folder))
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "not our own directory", str(folder))


def _which(error: OSError, root: Path) -> str:
    path = error.filename
    return f" ({path})" if isinstance(path, str) and Path(path) != root else ""


def make_folders(run: RunDir) -> None:
    for folder in (run.checkpoints, run.cycles, run.quarantine):
        durable.make_dir(folder)


def make_ballast(run: RunDir) -> None:
    """16 MB to be given up when the disk is full. Made again after that, once there is room."""
    with suppress(OSError, LonghaulError):
        if run.ballast.exists() and run.ballast.stat().st_size >= BALLAST_BYTES:
            return
        if durable.free_bytes(run.root) < ROOM_BYTES:
            return
        try:
            with run.ballast.open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, BALLAST_BYTES)
        except OSError:
            run.ballast.unlink(missing_ok=True)  # a part of it would be taken for the whole


def give_up_ballast(run: RunDir) -> None:
    with suppress(OSError):
        run.ballast.unlink(missing_ok=True)
