"""The file of what is to be sent and what was, which survives a kill: `notify/outbox.json` in the run.

A message is noted before its first try, and each try before it begins. So none is lost, and one is sent twice only if
the process ends between a try and the note that it succeeded; such a repetition has the same id and says `again`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from state import durable
from workers.notify.events import Event, Known

MOST_KEPT = 200
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 300.0


class Delivery(Struct):
    """One message to one target."""

    state: Literal["pending", "sent", "failed"] = "pending"
    tries: int = 0
    next_at: float = 0.0
    """UTC seconds before which it is not tried."""
    error: str = ""
    """Of the last try, without secrets."""


class Message(Struct):
    event: Event
    deliveries: dict[str, Delivery]


class Outbox(Struct):
    """known: None before the first look at the run."""

    known: Known | None = None
    messages: list[Message] = []

    def add(self, event: Event, targets: list[str]) -> None:
        """Note a message, unless there is one of that id."""
        if all(one.event.id != event.id for one in self.messages):
            self.messages.append(Message(event, {target: Delivery() for target in targets}))
        done = [one for one in self.messages if all(each.state != "pending" for each in one.deliveries.values())]
        for old in done[: max(0, len(self.messages) - MOST_KEPT)]:
            self.messages.remove(old)

    def due(self, now: float) -> list[tuple[Message, str, Delivery]]:
        """What is to be tried now, the oldest first. A wait that is longer than any ends: the clock was set back."""
        return [
            (message, target, delivery)
            for message in self.messages
            for target, delivery in message.deliveries.items()
            if delivery.state == "pending" and not now < delivery.next_at <= now + LONGEST_WAIT_S
        ]

    def is_pending(self) -> bool:
        return any(each.state == "pending" for one in self.messages for each in one.deliveries.values())


def tried(delivery: Delivery, error: str, retries: int, now: float) -> None:
    """Note how a try ended. error: empty if it succeeded."""
    delivery.error = error
    if not error:
        delivery.state = "sent"
    elif delivery.tries > retries:
        delivery.state = "failed"
    else:
        delivery.next_at = now + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (delivery.tries - 1))


class OutboxFile:
    """The file, and the lock that keeps a second process off it: one of a killed master may still be sending."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "outbox.json"
        durable.make_dir(folder)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.outbox = read(self._file)

    def save(self) -> None:
        durable.write_file(self._file, msgspec.json.encode(self.outbox))

    def close(self) -> None:
        os.close(self._lock)


def read(file: Path) -> Outbox:
    """An unreadable file counts as none: what is in the run by then is not told."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Outbox)
    except (OSError, msgspec.MsgspecError):
        return Outbox()
