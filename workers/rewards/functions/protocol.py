"""What the trainer and the process of the user's functions say to each other. (pure)"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from workers.user_code.frames import Began, Broke, Ping, Pong, Refused

Message = dict[str, Any]
"""A chat message: role, content."""


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


# --- from the process ------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    pid: int
    signatures: list[Signature]


class Ended(Struct, frozen=True, tag="ended"):
    """results: for each rollout the named values, or why there are none."""

    key: int
    results: list[dict[str, float] | str]
    seconds: float


Request = Setup | Ask | Ping
Reply = Ready | Refused | Began | Ended | Broke | Pong
