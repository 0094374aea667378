"""What the trainer and a process of the user's code say of every call: structs in MessagePack, each behind its length
in four bytes. (pure)"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

LOG_BYTES = 1 << 19
"""Of one log file. The one before it is kept beside it, with `.1` at its end."""
MOST_BYTES = 1 << 30
"""Of one frame. A longer one is not ours: the stream is broken."""


class Ping(Struct, frozen=True, tag="ping"):
    """To the process: is anybody there? Code that holds the interpreter lock keeps it from answering."""


class Pong(Struct, frozen=True, tag="pong"):
    """running: key of the coroutine that holds the event loop; -1: none."""

    running: int


class Refused(Struct, frozen=True, tag="refused"):
    """The user's code cannot be used. name: which of several; empty: all. why: a clause."""

    why: str
    name: str = ""


class Began(Struct, frozen=True, tag="began"):
    """A call runs. thread: its id in the system. cpu_s: what the thread had used by then."""

    key: int
    thread: int
    cpu_s: float


class Broke(Struct, frozen=True, tag="broke"):
    """The call failed. why: a clause without a subject. trace: the traceback. seconds: how long it took."""

    key: int
    why: str
    trace: str
    seconds: float


def frame(message: Struct) -> bytes:
    """Raises TypeError, ValueError or UnicodeEncodeError for values that MessagePack cannot hold."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames:
    """Cuts what is read into the bodies of frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are whole by now. Raises ValueError if the stream is broken."""
        self._data += data
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "big")
            if end > MOST_BYTES:
                raise ValueError(f"a frame of {end} bytes")
            if len(self._data) < end:
                return
            body = bytes(self._data[4:end])
            del self._data[:end]
            yield body
