"""What the trainer and the process of the user's functions say to each other: structs in MessagePack, each behind its
length in four bytes. (pure)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

LOG_BYTES = 1 << 19
"""Of one log file. The one before it is kept beside it, with `.1` at its end."""

Message = dict[str, Any]
"""A chat message: role, content."""
MOST_BYTES = 1 << 30
"""Of one frame. A longer one is not ours: the stream is broken."""


class Given(Struct, frozen=True):
    """A rollout as a function sees it.

    completion: its text; of a conversation: its messages. facts: tokens, finish_reason, is_truncated, is_correct,
    is_well_formed.
    """

    completion: str | list[Message]
    facts: dict[str, Any] = {}
    completion_ids: list[int] = []


class Call(Struct, frozen=True):
    """One call: of a function for one rollout, or in TRL's form for the rollouts of one problem.

    function: its index in the names. row: line of the data file, from 1, which `source` names in a mixture. prompt:
    text, of a conversation that of its last user message. messages: the prompt as a conversation; empty: it is none.
    columns: of the row, by name. state: `trainer_state` of functions in TRL's form, by attribute; empty: None.
    """

    function: int
    row: int
    prompt: str
    rollouts: list[Given]
    answer: str = ""
    messages: list[Message] = []
    columns: dict[str, Any] = {}
    state: dict[str, Any] = {}
    source: str = ""


class Signature(Struct, frozen=True):
    """What a function asks for. required: columns that it cannot do without."""

    takes_groups: bool
    """TRL's form: lists of prompts and completions; else one rollout."""
    is_async: bool
    names: list[str]
    takes_any: bool
    """It has **kwargs."""
    required: list[str]


# --- to the process --------------------------------------------------------------------------------------------------


class Setup(Struct, frozen=True, tag="setup"):
    names: list[str]
    files: list[str]
    """Absolute: the file of each name."""
    threads: int
    memory_bytes: int
    """In addition to what the process has before it imports the files."""


class Ask(Struct, frozen=True, tag="ask"):
    key: int
    call: Call


class Ping(Struct, frozen=True, tag="ping"):
    """Is anybody there? A function that holds the interpreter lock keeps the process from answering."""


# --- from the process ------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    pid: int
    signatures: list[Signature]


class Refused(Struct, frozen=True, tag="refused"):
    """A file cannot be imported, or a function is none."""

    name: str
    why: str


class Began(Struct, frozen=True, tag="began"):
    """A call runs. thread: its id in the system. cpu_s: what the thread had used by then."""

    key: int
    thread: int
    cpu_s: float


class Ended(Struct, frozen=True, tag="ended"):
    """results: for each rollout the named values, or why there are none."""

    key: int
    results: list[dict[str, float] | str]
    seconds: float


class Broke(Struct, frozen=True, tag="broke"):
    """The call raised. trace: the traceback."""

    key: int
    why: str
    trace: str
    seconds: float


class Pong(Struct, frozen=True, tag="pong"):
    """running: key of the coroutine that holds the event loop; -1: none."""

    running: int


Request = Setup | Ask | Ping
Reply = Ready | Refused | Began | Ended | Broke | Pong
requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


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
