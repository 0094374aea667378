"""Machine code of CUDA sources, kept on disk: each worker needs the same, and compiling it takes seconds.

A file is named by a hash of all that its code depends on, and begins with a hash of the rest. A damaged one is made
again. Where nothing can be written, every process compiles for itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from state.cache import cache_root


class Compiled(msgspec.Struct, frozen=True):
    """image: machine code. symbols: name of a kernel -> its name in the image."""

    image: bytes
    symbols: dict[str, bytes]


def folder() -> Path:
    return cache_root() / "cuda"


def kept(facts: Mapping[str, object], make: Callable[[], Compiled]) -> Compiled:
    """What an earlier process made of the same facts, or else `make`. facts: sources, options, compiler, GPU."""
    path = folder() / hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
    if (found := _read(path)) is not None:
        return found
    made = make()
    _write(path, made)
    return made


def _read(path: Path) -> Compiled | None:
    """None if there is no file, or one with other bytes than were written."""
    with suppress(OSError, msgspec.MsgspecError):
        data = path.read_bytes()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() == data[:size]:
            return msgspec.msgpack.decode(data[size:], type=Compiled)
    return None


def _write(path: Path, made: Compiled) -> None:
    """Not made durable: what a power cut leaves is damaged, and is made again."""
    data = msgspec.msgpack.encode(made)
    own = path.with_name(f".{path.name}.{os.getpid()}")  # several workers may compile at once
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            own.write_bytes(hashlib.sha256(data).digest() + data)
            own.rename(path)
        finally:
            own.unlink(missing_ok=True)
