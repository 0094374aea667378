"""Bases in 4 bits, kept on disk: each is quantised once, and later workers read a quarter of the bytes.

An entry is a model directory as `save_pretrained` writes it, named by a hash of all that its bytes depend on, with a
list of the hashes of its parts. It is filled under another name and renamed when it is whole. Every reader checks all
parts, in threads, and makes a damaged entry again. The entries that were used least recently go when there are more
than `model.cache_gib` of them. Without room or permission, a base is quantised at every start, and the log says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import LonghaulError
from profiles.schema import Model as Knobs
from state import durable
from state.cache import cache_root

log = logging.getLogger("worker")
MANIFEST = "parts.json"
PART_BYTES = 1 << 25
GIB = 1 << 30


class Manifest(msgspec.Struct, frozen=True):
    """Written last. parts: SHA-256 of each 32 MiB of each file."""

    made_of: dict[str, str]
    parts: dict[str, list[str]]
    sizes: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


def made_of(sha256: str, dtype: str, device: str) -> dict[str, str]:
    """All that the quantised bytes depend on. sha256: of the base's files (`identity.base_sha256`). device: its type,
    because a CPU and a GPU may round differently."""
    libraries = {name: version(name) for name in ("bitsandbytes", "torch", "transformers")}
    return {"base": sha256, "dtype": dtype, "device": device, "settings": "nf4 64 double"} | libraries


def folder() -> Path:
    return cache_root() / "nf4"


def quantised(facts: dict[str, str], knobs: Knobs, quantise: Callable[[], Any], read: Callable[[Path], Any]) -> Any:
    """The base in 4 bits: `read` from its entry, else made by `quantise` and kept. facts: see `made_of`."""
    limit = int(knobs.cache_gib * GIB)
    if not limit:
        return quantise()
    name = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:32]
    entry = folder() / name
    try:
        durable.make_dir(entry.parent)
        with _held(name, fcntl.LOCK_SH):
            model = _read(entry, read)
        if model is not None:
            return model
    except (OSError, LonghaulError) as error:
        log.warning("the quantised base is not kept: %s", error)
        return quantise()
    with _held(name, fcntl.LOCK_EX):  # whoever else wants this base waits, and then reads it
        model = _read(entry, read)
        if model is not None:
            return model
        model = quantise()
        try:
            _keep(model, entry, facts, limit)
        except (OSError, LonghaulError) as error:
            log.warning("the quantised base is not kept: %s", error)
    return model


def entries() -> list[tuple[Path, int, float]]:
    """(entry, bytes, when it was used last) of all that are whole, the least recently used first."""
    found = []
    for place in folder().glob(f"*/{MANIFEST}"):
        with suppress(OSError, msgspec.MsgspecError):
            manifest = msgspec.json.decode(place.read_bytes(), type=Manifest)
            found.append((place.parent, manifest.bytes, place.stat().st_mtime))
    return sorted(found, key=lambda one: (one[2], one[0]))


# --- one entry -------------------------------------------------------------------------------------------------------


@contextmanager
def _held(name: str, kind: int) -> Iterator[None]:
    """The kernel releases the lock of a process that is killed."""
    fd = os.open(folder() / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)


def _read(entry: Path, read: Callable[[Path], Any]) -> Any:
    """The model; None if there is no entry, or a damaged one."""
    if not (entry / MANIFEST).is_file():
        return None
    if why := damage(entry):
        log.warning("the quantised base in %s is damaged and is made again: %s", entry, why)
        return None
    with suppress(OSError):
        os.utime(entry / MANIFEST)
    try:
        return read(entry)
    except LonghaulError as error:  # whole, but these libraries cannot read it
        log.warning("the quantised base in %s is made again: %s", entry, error.what)
        return None


def damage(entry: Path) -> str:
    """Why an entry is not as it was written; empty if it is. Reads all of it."""
    try:
        manifest = msgspec.json.decode((entry / MANIFEST).read_bytes(), type=Manifest)
        for name, size in manifest.sizes.items():
            if (entry / name).stat().st_size != size:
                return f"{name} has another size"
        found = _parts(entry, list(manifest.sizes))
    except (OSError, msgspec.MsgspecError) as error:
        return str(error)
    return next((f"{name} has other bytes" for name in manifest.parts if manifest.parts[name] != found[name]), "")


def _parts(entry: Path, names: list[str]) -> dict[str, list[str]]:
    """Hashes of each file's parts. Reading and hashing run without Python's lock, so threads share the work."""
    places = [(name, begin) for name in names for begin in range(0, max(1, (entry / name).stat().st_size), PART_BYTES)]
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        hashes = pool.map(lambda place: _hash_of_part(entry / place[0], place[1]), places)
        found: dict[str, list[str]] = {name: [] for name in names}
        for (name, _), one in zip(places, hashes, strict=True):
            found[name].append(one)
    return found


def _hash_of_part(path: Path, begin: int) -> str:
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        return hashlib.sha256(file.read(PART_BYTES)).hexdigest()


def _keep(model: Any, entry: Path, facts: dict[str, str], limit: int) -> None:
    """Write the entry, and delete others until all fit. The caller holds it alone."""
    needed = sum(one.numel() * one.element_size() for one in model.state_dict().values())
    free = shutil.disk_usage(entry.parent).free
    if needed > limit or needed + GIB > free:
        which = "model.cache_gib allows" if needed > limit else "the disk has room for"
        log.warning("the quantised base of %.1f GiB is not kept: it is more than %s", needed / GIB, which)
        return
    making = entry.with_name(f"{entry.name}.making")
    for old in (making, entry):
        shutil.rmtree(old, ignore_errors=True)
    try:
        making.mkdir(mode=0o700)
        model.save_pretrained(making)
        names = sorted(path.name for path in making.iterdir())
        manifest = Manifest(facts, _parts(making, names), {name: (making / name).stat().st_size for name in names})
        for name in names:
            durable.fsync_file(making / name)
        durable.write_file(making / MANIFEST, msgspec.json.encode(manifest) + b"\n")
        making.rename(entry)
        durable.fsync_dir(entry.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    _make_room(entry, limit)


def _make_room(newest: Path, limit: int) -> None:
    """Delete what was used least recently, except `newest` and what a worker reads or makes right now."""
    found = entries()
    total = sum(size for _, size, _ in found)
    for entry, size, _ in found:
        if total <= limit:
            return
        if entry != newest and _delete(entry):
            total -= size


def _delete(entry: Path) -> bool:
    with suppress(OSError), (entry.parent / f"{entry.name}.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (entry / MANIFEST).unlink()  # first: what is left after a kill is not an entry
        shutil.rmtree(entry, ignore_errors=True)
        return True
    return False
