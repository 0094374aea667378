"""What is made once on a machine and kept on disk: machine code of CUDA sources, and how a card divides its products.

A file is named by a hash of all that its content depends on, and begins with a hash of the rest. A damaged one is made
again. Where nothing can be written, every process makes its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from state.cache import cache_root, keep

T = TypeVar("T")


class Compiled(msgspec.Struct, frozen=True):
    """image: machine code. symbols: name of a kernel -> its name in the image."""

    image: bytes
    symbols: dict[str, bytes]


def folder() -> Path:
    return cache_root() / "cuda"


def kept(facts: Mapping[str, object], make: Callable[[], T], kind: type[T]) -> T:
    """What an earlier process made of the same facts, or else `make`. facts: all that it depends on; kind: its type.

    Of several processes that make it at once, those that come later take what is there by then."""
    path = _path_of(facts)
    if (found := _read(path, kind)) is not None:
        return found
    made = make()
    if (found := _read(path, kind)) is not None:
        return found
    data = msgspec.msgpack.encode(made)
    keep(path, hashlib.sha256(data).digest() + data)
    return made


def is_kept(facts: Mapping[str, object]) -> bool:
    """Whether a later process will find it."""
    return _path_of(facts).exists()


def _path_of(facts: Mapping[str, object]) -> Path:
    return folder() / hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def _read(path: Path, kind: type[T]) -> T | None:
    """None if there is no file, or one with other bytes than were written."""
    with suppress(OSError, msgspec.MsgspecError):
        data = path.read_bytes()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() == data[:size]:
            return msgspec.msgpack.decode(data[size:], type=kind)
    return None
