"""The boundary of all commands: errors of paths, disks, stores and files become LonghaulErrors that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.display.wording import harmless
from profiles.errors import ExitCode, LonghaulError
from state import durable

NAME_ERRORS = frozenset({errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""Errors that only a path chosen by the user can cause."""
KEPT = "everything that was there"
BUGS = frozenset({errno.ENOENT, errno.EEXIST, errno.EBADF, errno.EINVAL, errno.EFAULT})
"""Errors that may be ours: they keep their traceback."""


@contextmanager
def writing(path: Path, kept: str) -> Iterator[None]:
    """Create files at a path chosen by the user. Raises LonghaulError (INPUT, PERMISSION, DISK) if that fails."""
    try:
        yield
    except OSError as error:
        raise durable.os_failure(error, "cannot write", path, kept) or _unusable(path, error, kept) from error


def failure_of(error: Exception) -> LonghaulError | None:
    """The LonghaulError for a failure of a path, disk, permission, store or file; None for what may be a bug. (pure)"""
    kind = type(error)
    if kind.__module__ == "sqlite3":  # by name, because not every command imports sqlite3
        return LonghaulError(
            f"a store cannot be used: {error}",
            kept=KEPT,
            next_command="python -m orchestrator recover --run NAME   (checks and repairs it)",
            exit_code=ExitCode.STORE,
        )
    if isinstance(error, UnicodeDecodeError) or kind.__module__ in ("json.decoder", "msgspec", "zlib", "tarfile"):
        return LonghaulError(
            f"a file does not hold what it should: {harmless(str(error))[:200]}",
            kept=KEPT,
            next_command="python -m orchestrator doctor --run NAME   (reads every file of a run, and says which)",
            exit_code=ExitCode.STORE,
        )
    return _refused(error) if isinstance(error, OSError) else None


def _refused(error: OSError) -> LonghaulError | None:
    named = error.filename2 or error.filename
    path = Path(os.fsdecode(named)) if isinstance(named, str | bytes | os.PathLike) else None
    if path is not None and error.errno in NAME_ERRORS:
        return _unusable(path, error, KEPT)
    if path is not None and (failure := durable.os_failure(error, "cannot use", path, KEPT)) is not None:
        return failure
    if error.errno is None or error.errno in BUGS:
        return None
    is_disk = error.errno in durable.DISK_ERRORS
    return LonghaulError(
        f"the system refused {'a call' if path is None else path}: {error.strerror}"
        f" ({errno.errorcode.get(error.errno, '?')})",
        kept=KEPT,
        next_command="dmesg | tail   (what the kernel says of disks), then the same command",
        exit_code=ExitCode.DISK if is_disk else ExitCode.INTERNAL,
    )


def _unusable(path: Path, error: OSError, kept: str) -> LonghaulError:
    name = str(path)
    shortened = harmless(name if len(name) <= 200 else f"{name[:150]}...{name[-40:]}")
    return LonghaulError(
        f"{shortened} cannot be used: {error.strerror}",
        kept=kept,
        next_command="the same command with another path",
        exit_code=ExitCode.INPUT,
    )
