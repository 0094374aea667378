"""Makes a copy of a run that another machine can go on with, also while the run trains; and a run from such a copy.

A back-up is a directory as the run's own, with the store as it was at one moment, and `BACKUP.json`, which names every
file with its sha256. It gets its name when everything is in it and on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import lzma
import os
import shutil
import sqlite3
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from orchestrator.display.wording import harmless
from orchestrator.path_errors import writing
from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.checkpoint import MANIFEST as CHECKPOINT
from state.checkpoint import Damaged, FileEntry, read_manifest
from state.database import enter_wal
from state.layout import HALF, RunDir, name_problem
from state.opening import read_only, store_error
from state.reader import is_born

MANIFEST = "BACKUP.json"
FORMAT_VERSION = 1
KEPT = "the run, untouched, and every back-up that was complete"
NOT_COPIED = frozenset(
    {"ballast", "lock", "control.sock", "workers", "readers", "standby", "backups", "quarantine", "checkpoints"}
)
"""What belongs to processes of the original, what is copied by itself, and what no start reads."""
TRIES = 5
"""Snapshots of the store, if the run prunes a checkpoint of each while it is copied."""
CHUNK = 1 << 20
LONGEST_STEM = 200
"""Bytes of a run's name that a back-up's name begins with; a file name may have 255, and the step follows."""


class Contents(msgspec.Struct, frozen=True):
    """`BACKUP.json`."""

    format_version: int
    run_id: str
    name: str
    cycle: int
    step: int
    files: dict[str, FileEntry]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


class Vanished(Exception):
    """A checkpoint was pruned while it was copied."""


def make(run: RunDir, into: Path) -> tuple[Path, Contents]:
    """A new back-up of the run in the folder `into`, and what is in it. A second call completes one that was cut off.

    Files of checkpoints never change: they are hard links where `into` is on the same file system. Raises
    LonghaulError: INPUT for a folder inside the run or one that cannot be made, or a run without a store, STORE for a
    damaged checkpoint, DISK, PERMISSION.
    """
    refuse_folder(run, into)
    for _ in range(TRIES):
        half = into / f"{HALF}{stem_of(run.name)}"
        with writing(into, KEPT):
            durable.create_dirs(half)
        with alone_in(half):
            try:
                contents = fill(run, half)
            except Vanished:
                continue
            target = free_name(into / f"{stem_of(run.name)}-s{contents.step:06d}")
            with durable.explained("cannot complete the back-up", target, KEPT):
                durable.rename_dir(half, target)
            return target, contents
    raise LonghaulError(
        f"run '{run.name}' pruned a checkpoint of each of {TRIES} snapshots before it was copied",
        kept=KEPT,
        next_command="the same command again, on a faster disk, or after: python -m orchestrator stop",
        exit_code=ExitCode.DISK,
    )


@contextmanager
def alone_in(half: Path) -> Iterator[None]:
    """Holds the folder. Raises LonghaulError (LOCKED) if another back-up of the run fills it, or has completed it."""
    with holding(half, without_locks=True) as is_mine:
        if not is_mine:
            raise LonghaulError(
                f"another back-up of this run is being written into {half.parent}",
                kept="the run, and that back-up",
                next_command="the same command once that one has ended",
                exit_code=ExitCode.LOCKED,
            )
        yield


@contextmanager
def holding(half: Path, *, without_locks: bool) -> Iterator[bool]:
    """Holds the folder, if no other process does or has removed or renamed it: whether it does.

    without_locks: the answer where the file system has no such locks.
    """
    with durable.explained("cannot open", half, KEPT):
        folder = os.open(half, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = half.is_dir() and os.path.samestat(os.fstat(folder), half.stat())
        except BlockingIOError:
            is_mine = False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF):
                raise
            is_mine = without_locks
        yield is_mine
    finally:
        os.close(folder)


def refuse_folder(run: RunDir, into: Path) -> None:
    if not is_born(run):
        what = f"run '{run.name}' has no store, so nothing says which checkpoints it has"
        command = f"python -m orchestrator recover --run {run.name}"
        raise LonghaulError(what, kept=KEPT, next_command=command, exit_code=ExitCode.INPUT)
    if into.resolve() == run.root.resolve() or run.root.resolve() in into.resolve().parents:
        what = f"{into} is inside the run: its back-up would be lost with it"
        command = "the same command with a folder on another disk"
        raise LonghaulError(what, kept=KEPT, next_command=command, exit_code=ExitCode.INPUT)


def stem_of(name: str) -> str:
    """What names of the run's back-ups begin with: its name, of which a digest replaces a long end. (pure)"""
    whole = os.fsencode(name)
    if len(whole) <= LONGEST_STEM:
        return name
    return f"{whole[: LONGEST_STEM - 9].decode(errors='ignore')}-{hashlib.sha256(whole).hexdigest()[:8]}"


def free_name(target: Path) -> Path:
    found, number = target, 1
    while os.path.lexists(found):
        number += 1
        found = target.with_name(f"{target.name}.{number}")
    return found


def fill(run: RunDir, half: Path) -> Contents:
    """Copy what is missing, remove what is too much, sync everything, write the manifest. Raises Vanished."""
    files: dict[str, FileEntry] = {}
    with durable.explained("cannot write the back-up", half, KEPT):
        head = copy_store(run, half / "state.db")
        files["state.db"] = entry_of(half / "state.db")
        for path in committed(half / "state.db"):
            files |= copy_checkpoint(run.root / path, half / path, path)
        for name in others(run.root):
            with suppress(FileNotFoundError):  # such as rollouts that were trained on meanwhile
                files[name] = copy(run.root / name, half / name)
        for extra in list(half.rglob("*")):
            if not extra.is_dir() and str(extra.relative_to(half)) not in files:
                extra.unlink()
        for folder in sorted((path for path in half.rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
            else:
                durable.fsync_dir(folder)
        contents = Contents(FORMAT_VERSION, head[0], run.name, head[1], head[2], files)
        durable.write_file(half / MANIFEST, msgspec.json.format(msgspec.json.encode(contents)) + b"\n")
    return contents


def copy_store(run: RunDir, target: Path) -> tuple[str, int, int]:
    """A consistent copy of the store, beside whoever writes it: run id, cycle and step of its head."""
    target.unlink(missing_ok=True)
    try:
        with closing(read_only(run.store)) as source:
            source.execute("VACUUM INTO ?", [str(target)])
        with closing(read_only(target)) as copied:
            row = copied.execute(
                "SELECT run_id, coalesce(c.cycle, 0), coalesce(c.step, 0) FROM runs"
                " LEFT JOIN checkpoints c ON head=checkpoint_id"
            ).fetchone()
    except sqlite3.Error as error:
        raise store_error(run, error) from error
    target.chmod(0o600)
    durable.fsync_file(target)
    return row[0], row[1], row[2]


def committed(store: Path) -> list[str]:
    with closing(read_only(store)) as db:
        rows = db.execute("SELECT path FROM checkpoints WHERE state='committed' ORDER BY step").fetchall()
    return [path for (path,) in rows]


def copy_checkpoint(source: Path, target: Path, name: str) -> dict[str, FileEntry]:
    """Link or copy a checkpoint and check every byte against its manifest. Raises Vanished; LonghaulError (STORE)."""
    try:
        manifest = read_manifest(source)
        found = {file: link_or_copy(source / file, target / file, entry) for file, entry in manifest.files.items()}
        found[CHECKPOINT] = link_or_copy(source / CHECKPOINT, target / CHECKPOINT, None)
    except (Damaged, OSError) as error:
        if not (source / CHECKPOINT).exists():
            raise Vanished from error
        if isinstance(error, OSError):
            raise
        raise damaged(name, error.reason) from error
    for file, entry in manifest.files.items():
        if found[file].sha256 != entry.sha256:
            raise damaged(name, f"{file} was changed: its sha256 differs from the manifest")
    return {f"{name}/{file}": entry for file, entry in found.items()}


def damaged(name: str, why: str) -> LonghaulError:
    return LonghaulError(
        f"{name} is damaged and cannot be backed up: {why}",
        kept=KEPT,
        next_command="python -m orchestrator doctor --run NAME --repair   (then the same command again)",
        exit_code=ExitCode.STORE,
    )


def others(root: Path) -> Iterator[str]:
    """Every other plain file of the run that a start or a person may read, by its relative name."""
    for folder, folders, names in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in NOT_COPIED]
            names = [name for name in names if name not in NOT_COPIED and not name.startswith((".", "state.db"))]
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            with suppress(FileNotFoundError):  # the run goes on
                if stat.S_ISREG(path.lstat().st_mode) and not name.endswith(".tmp"):
                    yield str(path.relative_to(root))


def link_or_copy(source: Path, target: Path, said: FileEntry | None) -> FileEntry:
    """The same file, or a copy where a link cannot be. What a call that was cut off left stays if it is `said`."""
    if target.exists():
        if said is not None and entry_of(target) == said:
            return said
        target.unlink()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return copy(source, target)
    return entry_of(target)


def copy(source: Path, target: Path) -> FileEntry:
    """A durable copy of what the file holds now; a log may go on growing."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, count = hashlib.sha256(), 0
    with source.open("rb") as reading:
        target.unlink(missing_ok=True)
        with target.open("xb") as writing:
            os.fchmod(writing.fileno(), 0o600)
            left = os.fstat(reading.fileno()).st_size
            while left and (chunk := reading.read(min(CHUNK, left))):
                writing.write(chunk)
                digest.update(chunk)
                count, left = count + len(chunk), left - len(chunk)
            writing.flush()
            os.fsync(writing.fileno())
    return FileEntry(count, digest.hexdigest())


def entry_of(path: Path) -> FileEntry:
    with path.open("rb") as file:
        return FileEntry(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


# --- from a back-up to a run ------------------------------------------------------------------------------------------


def read(source: Path) -> Contents:
    """What is in a back-up. Raises LonghaulError (INPUT, VERSION)."""
    try:
        contents = msgspec.json.decode((source / MANIFEST).read_bytes(), type=Contents)
    except (OSError, msgspec.MsgspecError) as error:
        what = f"{source} is no back-up that was completed: {error}"
        command = f"ls {source.parent}"
        raise LonghaulError(what, kept="nothing was changed", next_command=command, exit_code=ExitCode.INPUT) from error
    if away := [name for name in contents.files if name.startswith("/") or ".." in name.split("/")]:
        what = f"{source} names files outside a run: {harmless(away[0])}"
        command = f"ls {source.parent}   (restore another back-up)"
        raise LonghaulError(what, kept="nothing was changed", next_command=command, exit_code=ExitCode.INPUT)
    if problem := name_problem(contents.name):
        what = f"{source} names no run: {harmless(contents.name)}: {problem}"
        command = "the same command with another back-up"
        raise LonghaulError(what, kept="nothing was changed", next_command=command, exit_code=ExitCode.INPUT)
    if contents.format_version > FORMAT_VERSION:
        what = f"{source} has format {contents.format_version}; this program knows {FORMAT_VERSION}"
        raise LonghaulError(what, kept="the back-up", next_command="git pull", exit_code=ExitCode.VERSION)
    return contents


def restore(source: Path, runs: Path, name: str | None) -> tuple[RunDir, Contents]:
    """A run from a back-up or an archive of one, checked byte by byte before it gets its name.

    name: of the run; None for the original's. Raises LonghaulError: INPUT for a name that is taken or no back-up, STORE
    for a changed file, DISK, PERMISSION.
    """
    if not source.exists():
        command = f"ls {source.parent}"
        raise LonghaulError(
            f"there is no {source}", kept="nothing was changed", next_command=command, exit_code=ExitCode.INPUT
        )
    with writing(runs, KEPT):
        durable.create_dirs(runs)
    remove_abandoned(runs)
    with new_half(runs) as half:
        contents = fill_from(source, half)
        run = RunDir(runs / (name or contents.name))
        if os.path.lexists(run.root):
            what = f"there is a run '{run.name}' in {runs} already"
            command = "the same command with --run ANOTHER-NAME"
            raise LonghaulError(what, kept="both, unchanged", next_command=command, exit_code=ExitCode.INPUT)
        with durable.explained("cannot restore into", run.root, KEPT):
            durable.rename_dir(half, run.root)
        return run, contents


def remove_abandoned(runs: Path) -> None:
    """Remove what restores left that were killed. One that is at work holds its folder."""
    for path in runs.glob(f"{HALF}*"):
        with suppress(OSError, LonghaulError), holding(path, without_locks=False) as is_abandoned:
            if is_abandoned:
                durable.remove_tree(path, runs)


@contextmanager
def new_half(runs: Path) -> Iterator[Path]:
    """A folder that nobody else fills or removes. It is removed at the end of the block unless it was renamed."""
    with ExitStack() as stack:
        is_mine = False
        while not is_mine:  # another restore may take it for abandoned before it is held
            with writing(runs, KEPT):
                half = Path(mkdtemp(prefix=HALF, dir=runs))
            with suppress(FileNotFoundError):
                is_mine = stack.enter_context(holding(half, without_locks=True))
        try:
            yield half
        finally:
            with suppress(OSError):
                shutil.rmtree(half)


def fill_from(source: Path, half: Path) -> Contents:
    """The files of a back-up or an archive in that folder, checked and synced, with the store ready for a master."""
    with durable.explained("cannot restore into", half, KEPT):
        if source.is_dir():
            contents = read(source)
            found = {file: copy_if_there(source / file, half / file) for file in contents.files}
        else:
            unpack(source, half)
            contents = read(half)
            for extra in list(half.rglob("*")):
                if not extra.is_dir() and str(extra.relative_to(half)) not in {MANIFEST, *contents.files}:
                    extra.unlink()
            found = {file: entry_if_there(half / file) for file in contents.files}
    check(source, contents.files, found)
    (half / MANIFEST).unlink(missing_ok=True)
    with durable.explained("cannot restore into", half, KEPT):
        try:
            enter_wal(half / "state.db")
        except sqlite3.Error as error:
            raise store_error(RunDir(half), error) from error
        for folder in (half, *(path for path in half.rglob("*") if path.is_dir())):
            durable.fsync_dir(folder)
    return contents


def check(source: Path, said: Mapping[str, FileEntry], found: Mapping[str, FileEntry | None]) -> None:
    bad = [name for name, entry in said.items() if found[name] != entry]
    if bad:
        what = f"{len(bad)} files of {source} are not as they were backed up: {', '.join(bad[:3])}"
        command = f"ls {source.parent}   (restore another back-up)"
        raise LonghaulError(what, kept="nothing was restored", next_command=command, exit_code=ExitCode.STORE)


def copy_if_there(source: Path, target: Path) -> FileEntry | None:
    return copy(source, target) if source.is_file() else None


def entry_if_there(path: Path) -> FileEntry | None:
    return entry_of(path) if path.is_file() else None


# --- one file ---------------------------------------------------------------------------------------------------------


def pack(source: Path, target: Path) -> None:
    """Write a back-up as one tar file, which is complete once it has its name."""
    temporary = target.with_name(f".{target.name}.tmp")
    with durable.explained("cannot write", target, KEPT):
        with tarfile.open(temporary, "w") as archive:
            archive.add(source / MANIFEST, MANIFEST)
            for name in sorted(read(source).files):
                archive.add(source / name, name, recursive=False)
        durable.fsync_file(temporary)
        temporary.replace(target)
        durable.fsync_dir(target.parent)


def unpack(source: Path, into: Path) -> None:
    """Raises LonghaulError (INPUT) for a file that is no archive, or that would leave the folder."""
    try:
        with tarfile.open(source, "r:*") as archive:
            archive.extractall(into, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        what = f"{source} is no archive of a back-up: {error}"
        command = f"ls {source.parent}"
        raise LonghaulError(
            what, kept="nothing was restored", next_command=command, exit_code=ExitCode.INPUT
        ) from error
    for path in into.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        (durable.fsync_dir if path.is_dir() else durable.fsync_file)(path)


def archive(run: RunDir, target: Path) -> Contents:
    """Back the run up beside `target`, pack that into one file, and remove it again."""
    if os.path.lexists(target):
        command = "the same command with another FILE"
        raise LonghaulError(f"{target} is there already", kept="it", next_command=command, exit_code=ExitCode.INPUT)
    parts = target.parent / f".{target.name}.parts"
    refuse_folder(run, parts)
    with writing(target, KEPT):
        durable.create_dirs(parts)
    made, contents = make(run, parts)
    pack(made, target)
    shutil.rmtree(made.parent, ignore_errors=True)
    return contents
