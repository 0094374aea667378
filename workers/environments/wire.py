"""What the trainer and the process of environments say to each other, in the frames of reward functions. (pure)"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from workers.environments.protocol import Message


class Story(Struct, frozen=True):
    """An episode so far: enough to play it again. heard: what the environment said, at first and to each reply."""

    row: dict[str, Any]
    line: int
    replies: list[str] = []
    heard: list[list[Message]] = []


# --- to the process --------------------------------------------------------------------------------------------------


class Setup(Struct, frozen=True, tag="setup"):
    name: str
    """MODULE:NAME or FILE.py:NAME."""
    file: str
    """Absolute: the file that is imported."""
    options: dict[str, Any]
    threads: int
    memory_bytes: int
    """In addition to what the process has before it imports the file."""


class Open(Struct, frozen=True, tag="open"):
    """Make the object of an episode, and reset it."""

    key: int
    episode: int
    story: Story


class Step(Struct, frozen=True, tag="step"):
    """The next reply. story: of an episode that another process has begun; it is played again first."""

    key: int
    episode: int
    reply: str
    story: Story | None = None


class End(Struct, frozen=True, tag="end"):
    """A limit ended the episode."""

    key: int
    episode: int
    story: Story | None = None


class AskRows(Struct, frozen=True, tag="rows"):
    key: int


class Ping(Struct, frozen=True, tag="ping"):
    """Is anybody there? Code that holds the interpreter lock keeps the process from answering."""


# --- from the process ------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The class is imported. stop: its texts."""

    pid: int
    stop: list[str]


class Refused(Struct, frozen=True, tag="refused"):
    """The file cannot be imported, or the name is no environment."""

    why: str


class Began(Struct, frozen=True, tag="began"):
    """A call runs. thread: its id in the system. cpu_s: what the thread had used by then."""

    key: int
    thread: int
    cpu_s: float


class Opened(Struct, frozen=True, tag="opened"):
    """An episode has begun. tools: JSON schemas."""

    key: int
    episode: int
    messages: list[Message]
    tools: list[dict[str, Any]]


class Stepped(Struct, frozen=True, tag="stepped"):
    """What a reply led to."""

    key: int
    messages: list[Message]
    reward: float
    is_over: bool


class Over(Struct, frozen=True, tag="over"):
    """What an episode that was cut short earned last."""

    key: int
    reward: float


class OwnRows(Struct, frozen=True, tag="own rows"):
    """None: the environment brings none."""

    key: int
    rows: list[dict[str, Any]] | None


class Broke(Struct, frozen=True, tag="broke"):
    """The call failed, and its episode with it. why: a clause without a subject. trace: the traceback."""

    key: int
    why: str
    trace: str


class Pong(Struct, frozen=True, tag="pong"):
    """running: key of the coroutine that holds the event loop; -1: none."""

    running: int


Call = Open | Step | End | AskRows
Request = Setup | Open | Step | End | AskRows | Ping
Answer = Opened | Stepped | Over | OwnRows
Reply = Ready | Refused | Began | Opened | Stepped | Over | OwnRows | Broke | Pong
requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
