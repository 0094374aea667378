"""Creates and checks the run directory and its ballast."""

from __future__ import annotations

import argparse
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
"""Free space needed to create the ballast: twice its size."""


def behind_link(run: RunDir) -> RunDir:
    """Resolve a symbolic link to the run directory once, so that a later change of the link has no effect."""
    return RunDir(run.root.resolve(), link=run.root) if run.root.is_symlink() else run


def named_run(args: argparse.Namespace, command: str) -> RunDir:
    """The directory of `--run`, with or without a store. Raises LonghaulError (INPUT, USAGE)."""
    if args.run is None:
        raise LonghaulError(
            f"{command} needs the name of a run: --run NAME",
            kept="everything; nothing was read",
            next_command=f"ls {args.runs}",
            exit_code=ExitCode.USAGE,
        )
    root: Path = args.runs / args.run
    if not root.is_dir():
        raise LonghaulError(
            f"there is no directory {root}",
            kept="nothing was changed",
            next_command=f"ls {args.runs}",
            exit_code=ExitCode.INPUT,
        )
    return behind_link(RunDir(root))


def make_directory(run: RunDir) -> None:
    """Create the directory and its parents durably. Raises LonghaulError (PERMISSION, DISK, INPUT) if unusable."""
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
    """Raises PermissionError unless this user owns the folder and can read and write it."""
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
    """Reserve 16 MB to free when the disk is full. Recreated afterwards once there is space."""
    with suppress(OSError, LonghaulError):
        if run.ballast.exists() and run.ballast.stat().st_size >= BALLAST_BYTES:
            return
        if durable.free_bytes(run.root) < ROOM_BYTES:
            return
        try:
            with run.ballast.open("wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, BALLAST_BYTES)
        except OSError:
            run.ballast.unlink(missing_ok=True)  # a partial file would be mistaken for the whole


def give_up_ballast(run: RunDir) -> None:
    with suppress(OSError):
        run.ballast.unlink(missing_ok=True)
