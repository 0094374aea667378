"""What the trainer and the process of environments say to each other. (pure)"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from workers.environments.protocol import Message
from workers.user_code.frames import Began, Broke, Ping, Pong, Refused


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


# --- from the process ------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The class is imported. stop: its texts."""

    pid: int
    stop: list[str]


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


Call = Open | Step | End | AskRows
Request = Setup | Open | Step | End | AskRows | Ping
Answer = Opened | Stepped | Over | OwnRows
Reply = Ready | Refused | Began | Opened | Stepped | Over | OwnRows | Broke | Pong
