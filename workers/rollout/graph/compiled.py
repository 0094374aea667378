"""Machine code of CUDA sources, kept on disk: each worker needs the same, and compiling it takes seconds.

A file is named by a hash of all that its code depends on, and begins with a hash of the rest. A damaged one is made
again. Where nothing can be written, every process compiles for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from state.cache import cache_root, keep


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
    data = msgspec.msgpack.encode(made)
    keep(path, hashlib.sha256(data).digest() + data)
    return made


def _read(path: Path) -> Compiled | None:
    """None if there is no file, or one with other bytes than were written."""
    with suppress(OSError, msgspec.MsgspecError):
        data = path.read_bytes()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() == data[:size]:
            return msgspec.msgpack.decode(data[size:], type=Compiled)
    return None
