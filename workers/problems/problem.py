"""A problem with what its row says, and the usable problems of a file or of a mixture. (pure)"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class Message(Struct, frozen=True):
    """One message of a chat. role: system, user, assistant or tool."""

    role: str
    content: str


class Problem(Struct, frozen=True):
    """`number`: index among the usable problems, which a cursor counts; `line`: in the file, from 1.

    gold: the right answer, or the tests as the text of a JSON list; "" if the row has none and no reward needs one.
    messages: the prompt as a chat, if the row has one; `prompt` is then the text of the last user message.
    columns: every other column of the row by its own name, as JSON values, including the answer; `tests` in their
    canonical form. source: the file of a mixture, as the profile names it; "" if there is only one.
    """

    number: int
    line: int
    prompt: str
    gold: str
    has_tests: bool = False
    messages: tuple[Message, ...] = ()
    columns: dict[str, Any] = {}
    source: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """The row as an environment sees it: its columns by name, with prompt, answer and messages if it has them."""
        found: dict[str, Any] = {**self.columns, "prompt": self.prompt}
        if self.gold and not self.has_tests:
            found["answer"] = self.gold
        if self.messages:
            found["messages"] = msgspec.to_builtins(list(self.messages))
        return found


class BadLine(Struct, frozen=True):
    line: int
    reason: str
    source: str = ""


class Problems(Struct, frozen=True):
    """The usable lines in order, and the skipped ones. path: with several files, all their names.

    not_json: columns that were left out, because no JSON can hold their values -> the kind of value. revisions: hub
    name -> commit of the data set that was read.
    """

    path: Path
    problems: tuple[Problem, ...]
    left_out: tuple[BadLine, ...] = ()
    not_json: dict[str, str] = {}
    revisions: dict[str, str] = {}

    @property
    def digest(self) -> str:
        """Of all prompts and answers in order; also of messages and sources, and of the columns of rows without an
        answer, by which alone a reward can judge them."""
        whole = hashlib.sha256()
        for one in self.problems:
            more: list[object] = [one.messages, one.source] if one.messages or one.source else []
            if not one.gold:
                more.append(json.dumps(one.columns, sort_keys=True))
            whole.update(msgspec.json.encode([one.prompt, one.gold, *more]) + b"\n")
        return whole.hexdigest()
