"""The messages between leader and follower: typed MessagePack over a socket, each with a length prefix.

Nothing here has a timeout: a process that ends closes its socket, and the others watch for that.
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
    """File through which the ranks of one host meet. Empty with several hosts, whose ranks use the leader's store."""
    head: str
    """Directory of the checkpoint, which the leader has verified. Empty if there is none."""
    kind: str
    """Package of `workers` whose replica serves the calls: a kind of worker, or `node_check`."""


class Ranks(Struct, tag=True):
    """The first message to another host: the ranks to start."""

    first: int
    count: int


class RankEnded(Struct):
    """From another host: one of its ranks ended. code: return code as in Popen. tail: last lines of its log."""

    rank: int
    code: int
    tail: list[str]


class RayNode(Struct, tag=True):
    """The first message to another host whose attempt is verl's: the node of a Ray cluster to start."""

    address: str
    """Of the cluster's head."""
    token: str
    """Without it, nobody can talk to the cluster."""
    gpus: int
    cpus: int
    """0: all that the host's process may use."""
    store_bytes: int
    """Of the node's object store; 0: Ray's default."""
    log_folder: str


class RayEnded(Struct):
    """From another host: its node of Ray ended. code: return code as in Popen."""

    code: int


class Farewell(Struct):
    """The last message to another host: the attempt is over."""


Found = TypeVar("Found")


class Call(Struct, Generic[Found], tag=True):
    """To a follower: a call, identified by its type. `Found` is the type of the result."""


def found_of(call: type[Call[Any]]) -> Any:
    """The result type of a call."""
    (base,) = (one for one in call.__orig_bases__ if get_origin(one) is Call)  # type: ignore[attr-defined]
    return get_args(base)[0]


class Reply(Struct):
    """From a follower, one per call. out_of_memory: the error message if it ran out of memory, else empty."""

    body: Raw = Raw(b"\xc0")
    """The encoded result, of the call's result type."""
    out_of_memory: str = ""
    phase: str = ""
    """The phase in which memory ran out."""


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
    """Receive the next message. Raises Gone, and msgspec.MsgspecError for an invalid message."""
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
