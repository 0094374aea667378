"""Turns errors about unusable paths into LonghaulErrors with the path and the reason."""

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
"""Errors that only a path chosen by the user can cause. A missing file may be a bug, so ENOENT is not included."""


@contextmanager
def writing(path: Path, kept: str) -> Iterator[None]:
    """Create files at a path chosen by the user. Raises LonghaulError (INPUT, PERMISSION, DISK) if that fails."""
    try:
        yield
    except OSError as error:
        raise durable.os_failure(error, "cannot write", path, kept) or _unusable(path, error, kept) from error


def failure_of(error: Exception) -> LonghaulError | None:
    """The LonghaulError for a failure of a path, disk, permission or store; None for anything else."""
    kept = "everything that was there"
    if type(error).__module__ == "sqlite3":  # by name, because not every command imports sqlite3
        return LonghaulError(
            f"a store cannot be used: {error}",
            kept=kept,
            next_command="python -m orchestrator recover --run NAME   (checks and repairs it)",
            exit_code=ExitCode.STORE,
        )
    if not isinstance(error, OSError) or not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    path = Path(os.fsdecode(error.filename2 or error.filename))
    if error.errno in NAME_ERRORS:
        return _unusable(path, error, kept)
    return durable.os_failure(error, "cannot use", path, kept)


def _unusable(path: Path, error: OSError, kept: str) -> LonghaulError:
    name = str(path)
    shortened = harmless(name if len(name) <= 200 else f"{name[:150]}...{name[-40:]}")
    return LonghaulError(
        f"{shortened} cannot be used: {error.strerror}",
        kept=kept,
        next_command="the same command with another path",
        exit_code=ExitCode.INPUT,
    )
