"""The only durable writes: once a function here returns, its write survives a crash or a power cut.

Files are 0600, directories 0700, and symbolic links are never followed. A full, read-only or failing disk raises
LonghaulError (DISK), missing permission LonghaulError (PERMISSION). Any other OSError is a bug and passes through.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state.crash import crash_point

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_ERRORS = FULL_ERRORS | {errno.EROFS, errno.EIO}
PERMISSION_ERRORS = frozenset({errno.EACCES, errno.EPERM})
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def os_failure(error: OSError, doing: str, path: Path, kept: str) -> LonghaulError | None:
    """The LonghaulError for a disk or permission error; None for any other. (pure)"""
    reason = error.strerror or str(error)
    if error.errno in PERMISSION_ERRORS:
        return LonghaulError(
            f"{doing} {path}: {reason}",
            kept=kept,
            next_command=f"ls -ld {path.parent}   (it must belong to you and be writable), then: "
            "python -m orchestrator run",
            exit_code=ExitCode.PERMISSION,
        )
    if error.errno not in DISK_ERRORS:
        return None
    remedy = {
        errno.EROFS: f"findmnt -T {path.parent}   (mounted read-only; remount it)",
        errno.EIO: "dmesg | tail   (the disk reports errors)",
    }.get(error.errno or 0, f"df -h {path.parent}   (free some space)")
    return LonghaulError(
        f"{doing} {path}: {reason}",
        kept=kept,
        next_command=f"{remedy}, then: python -m orchestrator run",
        exit_code=ExitCode.DISK,
    )


@contextmanager
def explained(doing: str, path: Path, kept: str = "everything that was saved before") -> Iterator[None]:
    """Turn disk and permission errors in the block into LonghaulErrors."""
    try:
        yield
    except OSError as error:
        failure = os_failure(error, doing, path, kept)
        if failure is None:
            raise
        raise failure from error


def write_file(path: Path, data: bytes) -> None:
    """Replace or create `path` with `data`. A reader sees either the old content or the new, never a mixture."""
    temporary = path.with_name(f".{path.name}.tmp")  # a fixed name, so that a crash leaves at most one
    with explained("cannot write", path):
        with suppress(FileNotFoundError):
            temporary.unlink()
        try:
            _write_new(temporary, data)
            crash_point("durable.before_rename")
            temporary.rename(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        crash_point("durable.after_rename")
        fsync_dir(path.parent)


def write_new_file(path: Path, data: bytes) -> None:
    """Create `path` and fsync it, but not its directory. For files in a directory that is still to be renamed."""
    with explained("cannot write", path):
        _write_new(path, data)


def _write_new(path: Path, data: bytes) -> None:
    fd = os.open(path, _NEW_FILE, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Put the content and size of `path` on disk. For its name, see fsync_dir."""
    _fsync(path, os.O_RDONLY)


def fsync_dir(path: Path) -> None:
    """Put the names in directory `path` on disk. `path` may be a link to a directory."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY, follow=True)


def _fsync(path: Path, flags: int, *, follow: bool = False) -> None:
    with explained("cannot make durable", path):
        fd = os.open(path, flags | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_dir(path: Path) -> None:
    """Create `path` and its missing parents (0700), durably. Leaves an existing directory as it is."""
    with explained("cannot create", path):
        create_dirs(path)


def create_dirs(path: Path) -> None:
    """Like `make_dir`, but raises a plain OSError."""
    for folder in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            if not folder.exists():
                folder.mkdir(mode=0o700)
                fsync_dir(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def rename_dir(source: Path, target: Path) -> None:
    """Rename durably. Raises FileExistsError if `target` exists: rename(2) would replace an empty directory."""
    with explained("cannot rename to", target):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
        fsync_dir(target.parent)
        if source.parent != target.parent:
            fsync_dir(source.parent)


def remove_tree(path: Path, root: Path) -> None:
    """Remove a directory or file below `root`, durably. Does nothing if it is already gone, and goes on if another
    process removes or renames parts of it meanwhile: the worker of a lost host may still clear what it was writing.

    Raises ValueError for a symbolic link, for `root` itself, and for a path that resolves outside `root`. Removes links
    inside the tree without following them.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink():
        raise ValueError(f"refused to remove {path}: it is a symbolic link")
    resolved, limit = path.resolve(), root.resolve()
    if resolved == limit or limit not in resolved.parents:
        raise ValueError(f"refused to remove {path}: it is not inside {root}")
    with explained("cannot remove", path):
        if path.is_dir():
            shutil.rmtree(path, onerror=_raise_unless_gone)
        else:
            path.unlink(missing_ok=True)
        fsync_dir(path.parent)


def _raise_unless_gone(_function: object, _path: str, raised: tuple[object, BaseException, object]) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def remove_tree_or_leave(path: Path, root: Path) -> None:
    """As `remove_tree`, for what a later start finds again: leaves a directory that the file system holds on to. On a
    network file system a file that some process has open keeps a hidden name, so its directory is not empty."""
    try:
        remove_tree(path, root)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise


def free_bytes(path: Path) -> int:
    """Free bytes available to this user on the file system of `path`."""
    with explained("cannot look at", path):
        usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


class Appender:
    """Appends whole lines to a file, each by one write(2). Must be the only writer of that file."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`. If an earlier writer left a torn last line, the next append ends it with a newline."""
        self.path = path
        with explained("cannot open", path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o600)
            size = os.fstat(self._fd).st_size
            self._is_torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
            fsync_dir(path.parent)

    def append(self, line: bytes, *, sync: bool = False) -> None:
        """Append `line`, which must not contain a newline. sync: also fsync.

        Raises LonghaulError (DISK) if the line does not fit; a partly written line is truncated away.
        """
        if b"\n" in line:
            raise ValueError(f"{self.path.name}: a line with a newline in it")
        with explained("cannot append to", self.path, kept="every line before it"):
            size = os.fstat(self._fd).st_size
            data = (b"\n" if self._is_torn else b"") + line + b"\n"
            self._is_torn = True
            try:
                self._write(data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._fd, size)
                    self._is_torn = data.startswith(b"\n")
                raise
            self._is_torn = False
            if sync:
                os.fsync(self._fd)

    def _write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):  # a short write to a regular file means a full disk: the next write raises ENOSPC
            rest = os.write(self._fd, data[written:])
            if rest < len(data) - written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        with explained("cannot make durable", self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
