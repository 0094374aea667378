"""What leader and follower say to each other: one message after the other over a socket pair, MessagePack by type.

Nothing here waits with a deadline: an end that is gone closes the socket, and others watch for that.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

CHANNEL_FD_VARIABLE = "LONGHAUL_RANK_FD"
LENGTH = struct.Struct(">Q")


class Begin(Struct):
    """The first message to a follower."""

    spec: str
    token: str
    rank: int
    size: int
    store: str
    """File through which the ranks meet."""
    head: str
    """Directory of the checkpoint; empty: none. The leader has verified it."""


Found = TypeVar("Found")


class Call(Struct, Generic[Found], tag=True):
    """To a follower: what to do, by its type; `Found` is what comes of it."""


def found_of(call: type[Call[Any]]) -> Any:
    """The type of what comes of a call."""
    (base,) = (one for one in call.__orig_bases__ if get_origin(one) is Call)  # type: ignore[attr-defined]
    return get_args(base)[0]


class Reply(Struct):
    """From a follower, one for each call. out_of_memory: why it could not be done, empty where it was."""

    body: Raw = Raw(b"\xc0")
    """Of the type that the call says."""
    out_of_memory: str = ""
    phase: str = ""
    """In which memory ran out."""


Message = TypeVar("Message")
_encoder = msgspec.msgpack.Encoder()


class Gone(Exception):
    """The other process closed its end."""


def packed(body: Any) -> Raw:
    return Raw(_encoder.encode(body))


def unpacked(body: Raw, type_: type[Message]) -> Message:
    return msgspec.msgpack.decode(body, type=type_)


def send(channel: socket.socket, message: Struct) -> None:
    """Raises Gone."""
    data = _encoder.encode(message)
    try:
        channel.sendall(LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise Gone(str(error)) from error


def receive(channel: socket.socket, type_: type[Message]) -> Message:
    """The next message. Raises Gone."""
    (length,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
    return msgspec.msgpack.decode(_exactly(channel, length), type=type_)


def _exactly(channel: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        try:
            got = channel.recv_into(view[done:])
        except OSError as error:
            raise Gone(str(error)) from error
        if not got:
            raise Gone("the other end is closed")
        done += got
    return data
