"""The format of a checkpoint: stage, fsync, manifest last, rename, verify.

A directory is a checkpoint only if its manifest verifies. This module knows neither the contents of the state files nor
which checkpoint is the head.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.crash import crash_point
from state.layout import RunDir

FORMAT_VERSION = 1
MANIFEST = "MANIFEST.json"
STAGING_PREFIX = ".staging-"
READ_BYTES = 1 << 20
"""Bytes read and hashed at a time."""
SIDE_BY_SIDE = 8
"""Files of one checkpoint that are hashed and fsynced at a time."""
LOST_ERRORS = frozenset({errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EUCLEAN})
KEPT = "the head, as it was; the unfinished checkpoint was removed"
Item = TypeVar("Item")
Value = TypeVar("Value")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SEALED = re.compile(rb'(\{.*),"seal":"([0-9a-f]{64})"\}\n', re.DOTALL)


class Damaged(Exception):
    """Raised for a checkpoint directory that must not be used; `reason` says why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path = path
        self.reason = reason


class FileEntry(Struct, frozen=True):
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True):
    """`MANIFEST.json`. On disk its last field is `seal`, the sha256 of all bytes before it."""

    format_version: int
    run_id: str
    parent: str | None
    """checkpoint_id of the checkpoint it continues; None for the first of a run."""
    cycle: int
    attempt: int
    token: str
    step: int
    files: dict[str, FileEntry]
    digest: str
    """Covers only file names and hashes, so equal state has an equal digest whoever wrote it and when."""
    versions: dict[str, str]
    profile_sha256: str
    created_at: float

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    @staticmethod
    def checkpoint_id(path: Path) -> str:
        """Identity of the checkpoint directory `path`: the sha256 of its manifest file."""
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()


@dataclass(frozen=True)
class Saved:
    """A durable checkpoint. path: relative to the run directory, as stored and sent."""

    path: str
    directory: Path
    manifest: Manifest
    checkpoint_id: str

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def digest(self) -> str:
        return self.manifest.digest


# --- writing -------------------------------------------------------------------------------------------------------


def stage(
    run: RunDir,
    *,
    run_id: str,
    parent: str | None,
    cycle: int,
    attempt: int,
    token: str,
    step: int,
    profile_sha256: str,
    versions: Mapping[str, str],
    write: Callable[[Path], None],
) -> Saved:
    """Make a durable checkpoint from the files that `write` puts into an empty directory.

    If a valid checkpoint with this token and step exists, returns it. Raises what `write` raises, and LonghaulError
    (DISK, PERMISSION); in both cases the staging directory is removed.
    """
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"token {token!r} cannot be part of a file name")
    durable.make_dir(run.checkpoints)
    target = _free_name(run.checkpoints / directory_name(cycle, step, token))
    if target.exists():
        return _saved(run, target)
    staging = run.checkpoints / f"{STAGING_PREFIX}{token}"
    durable.remove_tree(staging, run.checkpoints)
    try:
        with durable.explained("cannot save checkpoint", staging, KEPT):
            staging.mkdir(mode=0o700)
            crash_point("ckpt.staging_created")
            write(staging)
            files = _seal_files(staging)
            crash_point("ckpt.files_written")
            manifest = Manifest(
                format_version=FORMAT_VERSION,
                run_id=run_id,
                parent=parent,
                cycle=cycle,
                attempt=attempt,
                token=token,
                step=step,
                files=files,
                digest=state_digest(files),
                versions=dict(versions),
                profile_sha256=profile_sha256,
                created_at=time.time(),
            )
            durable.write_new_file(staging / MANIFEST, encode_manifest(manifest))
            crash_point("ckpt.manifest_written")
            durable.fsync_dir(staging)
            crash_point("ckpt.before_rename")
            durable.rename_dir(staging, target)
            crash_point("ckpt.after_rename")
    except Exception as error:
        with suppress(OSError, LonghaulError):
            durable.remove_tree(staging, run.checkpoints)
        failure = _explained(error, staging)
        if failure is error:
            raise
        raise failure from error
    return _saved(run, target)


def directory_name(cycle: int, step: int, token: str) -> str:
    return f"c{cycle:04d}-s{step:06d}-{token}"


def _free_name(target: Path) -> Path:
    """The first of target, target.2, target.3 ... that is free or valid. Recovery deals with the damaged ones."""
    candidate, number = target, 1
    while os.path.lexists(candidate) and problem_with(candidate, deep=True):
        number += 1
        candidate = target.with_name(f"{target.name}.{number}")
    return candidate


def _saved(run: RunDir, directory: Path) -> Saved:
    return Saved(run.relative(directory), directory, read_manifest(directory), Manifest.checkpoint_id(directory))


def _seal_files(directory: Path) -> dict[str, FileEntry]:
    """Hash every file, set it to 0600 and fsync it, several side by side; then fsync the subfolders."""
    found = sorted(_walk(directory))

    def seal(one: tuple[str, os.stat_result]) -> FileEntry:
        name, status = one
        path = directory / name
        path.chmod(0o600)
        digest = _sha256(path)
        durable.fsync_file(path)
        return FileEntry(status.st_size, digest)

    files = dict(zip((name for name, _ in found), side_by_side(seal, found), strict=True))
    folders = {directory / folder for name in files for folder in Path(name).parents if folder != Path()}
    if not files:
        raise Damaged(directory, "nothing was written into it")
    for folder in sorted(folders, reverse=True):
        folder.chmod(0o700)
        durable.fsync_dir(folder)
    return files


def side_by_side(work: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    """`work` of each item, in threads, and all of it is over on return. Raises the error of the first item that has
    one. Neither a hash nor an fsync holds the GIL, and a file system makes what is fsynced at one time durable by few
    writes of its journal."""
    from concurrent.futures import ThreadPoolExecutor  # the readers of manifests, such as `status`, start without it

    with ThreadPoolExecutor(SIDE_BY_SIDE, "seal") as threads:
        return list(threads.map(work, items))


def _explained(error: Exception, path: Path) -> Exception:
    """Turn disk faults into a LonghaulError. safetensors wraps them in its own type, hence the match on the text."""
    if isinstance(error, LonghaulError):
        return LonghaulError(error.what, kept=KEPT, next_command=error.next_command, exit_code=error.exit_code)
    if "No space left on device" in str(error):
        full = OSError(errno.ENOSPC, "No space left on device")
        return durable.os_failure(full, "cannot save checkpoint", path, KEPT) or error
    return error


# --- the manifest --------------------------------------------------------------------------------------------------


def state_digest(files: Mapping[str, FileEntry]) -> str:
    """sha256 over the sorted lines "name sha256". (pure)"""
    lines = "".join(f"{name} {files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """JSON that ends with the seal, so that any changed byte is detected. (pure)"""
    body = msgspec.json.encode(manifest, order="deterministic").removesuffix(b"}")
    return body + b',"seal":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def read_manifest(path: Path) -> Manifest:
    """Read and check the sealed manifest of the checkpoint directory `path`, without looking at other files.

    Raises Damaged; LonghaulError (VERSION) if a newer program wrote it.
    """
    raw = _read_regular(path)
    sealed = _SEALED.fullmatch(raw)
    if sealed is None:
        raise Damaged(path, f"{MANIFEST} is torn or not a manifest ({len(raw)} bytes)")
    if hashlib.sha256(sealed[1]).hexdigest() != sealed[2].decode():
        raise Damaged(path, f"{MANIFEST} was changed: its seal does not match")
    try:
        version = msgspec.json.decode(raw)["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise LonghaulError(
                f"checkpoint {path.name} has format {version}; this program knows {FORMAT_VERSION}",
                kept="the checkpoint, unchanged",
                next_command="git pull && make setup",
                exit_code=ExitCode.VERSION,
            )
        return msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, KeyError) as error:
        raise Damaged(path, f"{MANIFEST} lacks something: {error}") from error


def _read_regular(path: Path) -> bytes:
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise Damaged(path, "it is not a directory")
        if not stat.S_ISREG((path / MANIFEST).lstat().st_mode):
            raise Damaged(path, f"{MANIFEST} is not a plain file")
        return (path / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise Damaged(path, f"it has no {MANIFEST}" if path.exists() else "it is missing") from error
    except OSError as error:
        failure = _unreadable(path, error)
        if failure is error:
            raise
        raise failure from error


# --- verifying -----------------------------------------------------------------------------------------------------


def verify(path: Path, deep: bool, between: Callable[[], None] = lambda: None, *, from_disk: bool = False) -> Manifest:
    """Check the manifest and the name and size of every file, with `deep` also every byte. Returns the manifest.

    between: called after every READ_BYTES hashed; an exception from it stops the work. from_disk: have the kernel drop
    what it caches of each file first, as memory hides what rotted on the disk. Raises Damaged; LonghaulError (VERSION)
    for a newer format, (DISK, PERMISSION) if files cannot be read.
    """
    manifest = read_manifest(path)
    try:
        _verify_files(path, manifest, deep, between, from_disk)
    except OSError as error:
        failure = _unreadable(path, error)
        if failure is error:
            raise
        raise failure from error
    if state_digest(manifest.files) != manifest.digest:
        raise Damaged(path, "the digest in its manifest does not match its files")
    return manifest


def problem_with(path: Path, deep: bool) -> str:
    """Why the checkpoint cannot be used; empty if it verifies."""
    try:
        verify(path, deep)
    except Damaged as damaged:
        return damaged.reason
    return ""


def _verify_files(path: Path, manifest: Manifest, deep: bool, between: Callable[[], None], from_disk: bool) -> None:
    found = {name: status.st_size for name, status in _walk(path) if name != MANIFEST}
    missing, extra = sorted(manifest.files.keys() - found), sorted(found.keys() - manifest.files)
    if missing:
        raise Damaged(path, f"{missing[0]} is missing")
    if extra:
        raise Damaged(path, f"{extra[0]} is not in the manifest")
    for name, entry in manifest.files.items():
        if found[name] != entry.bytes:
            raise Damaged(path, f"{name} has {found[name]} bytes, the manifest says {entry.bytes}")
    for name, entry in manifest.files.items() if deep else ():
        if _sha256(path / name, between, from_disk=from_disk) != entry.sha256:
            raise Damaged(path, f"{name} was changed: its sha256 differs from the manifest")


def _walk(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below `directory`, by relative name. Raises Damaged for links, sockets and other special files."""
    with os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield from ((f"{entry.name}/{name}", inner) for name, inner in _walk(Path(entry.path)))
            elif stat.S_ISREG(status.st_mode):
                yield entry.name, status
            else:
                raise Damaged(directory, f"{entry.name} is a symbolic link or another special file")


def _sha256(path: Path, between: Callable[[], None] = lambda: None, *, from_disk: bool = False) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(READ_BYTES))
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        if from_disk:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            between()
        if from_disk:  # what nobody reads again should not crowd out what others do
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _unreadable(path: Path, error: OSError) -> Exception:
    """Damaged only if the disk lost the file: missing permission or too many open files say nothing about it. (pure)"""
    if error.errno in LOST_ERRORS:
        return Damaged(path, f"it cannot be read: {error.strerror}")
    return durable.os_failure(error, "cannot read", path, "all files, unchanged") or error
