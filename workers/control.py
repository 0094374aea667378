"""The worker's side of the control link to the master: requests in, replies and heartbeats out, one JSON object a line.

Nothing here blocks training: one thread reads and another writes. While the master is stopped, only the writer waits.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from profiles.errors import ExitCode
from workers.contract import CONTRACT_VERSION, HEARTBEAT_EVERY_S, MAX_MESSAGE_BYTES, Message

STAGE_HEARTBEAT_S = 0.2
"""Minimum seconds between heartbeats that only report a new stage."""
FLUSH_S = 2.0
RETRY_S = 0.25


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class Requests:
    """Requests from the master, kept until the current step ends. The reader thread adds them; the main thread takes
    them."""

    checkpoint_ids: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    stop_ids: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    stop: threading.Event = field(default_factory=threading.Event)
    start: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)
    """The `start`, `prepare` or `load` message; its path is that of spec.json. None: stopped before starting, or the
    link ended."""
    head: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)
    """After `load`: the `prepare` message. None as above."""
    waits_for_head: bool = False
    """Whether the spec to start with names no more than what to load: the head to train from is still to come."""
    may_save: threading.Event = field(default_factory=_set)
    """Not set from `load` or `prepare` to `start`: nothing that a worker does in between may last, unless it is
    started."""
    is_paused: bool = False
    news: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    """An entry for each request, so that a paused worker wakes up."""
    dropped: int = 0
    """Number of lines dropped: another token, or not a valid message."""

    def checkpoints_wanted(self) -> list[int]:
        """Ids of all checkpoint requests so far: one checkpoint answers them all."""
        return _drain(self.checkpoint_ids)

    def stops_wanted(self) -> list[int]:
        return _drain(self.stop_ids)

    def wait(self, seconds: float) -> None:
        """Return once a request has come since the last call, or after so many seconds."""
        with suppress(queue.Empty):
            self.news.get(timeout=seconds)


_MOVED = Message(type="moved")
"""Wakes the writer thread; never sent."""


def _drain(source: queue.SimpleQueue[int]) -> list[int]:
    found: list[int] = []
    while True:
        try:
            found.append(source.get_nowait())
        except queue.Empty:
            return found


class Link(Protocol):
    """Carries lines between a worker and its master."""

    def lines(self) -> Iterator[bytes]:
        """Yield requests as they arrive, until the link ends. Called by one thread."""

    def send(self, line: bytes) -> None:
        """Send a line that includes its newline. May block.

        Raises ConnectionError if the other end is gone, and another OSError if the line did not pass: send it again.
        """

    def fence(self) -> None:
        """End this process without touching anything if another copy of it has taken over its work."""


class SocketLink:
    """The link to a master on this host, over the socket that the worker inherited."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)

    def lines(self) -> Iterator[bytes]:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            while line := lines.readline(MAX_MESSAGE_BYTES):
                yield line

    def send(self, line: bytes) -> None:
        self._socket.sendall(line)

    def fence(self) -> None:
        """Do nothing: a process that the master itself started has no copy."""


class Control:
    """Both directions of the link. Without a link there is no master: nothing is sent and no spec arrives."""

    def __init__(self, link: Link | None, token: str) -> None:
        self.requests = Requests()
        self._token = token
        self._link = link
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._hint = False
        self._step, self._stage = 0, "starting"
        self._has_moved = False
        self._is_deaf = False
        self._writer = threading.Thread(target=self._write, name="heartbeat", daemon=True)
        if self._link is not None:
            threading.Thread(target=self._read, name="control", daemon=True).start()
            self._writer.start()
        else:
            self.requests.start.put(None)

    def send(self, message: Message) -> None:
        """Queue a reply for the writer thread; `close` waits until it is sent."""
        self._outbox.put(message)

    def fence(self) -> None:
        """End this process if another copy has taken over. Call it before work becomes permanent."""
        if self._link is not None:
            self._link.fence()

    def hint(self) -> None:
        """Tell the master that events.jsonl grew; hints in quick succession are sent as one message."""
        if not self._hint:
            self._hint = True
            self._outbox.put(Message(type="event_hint"))

    def at(self, step: int, stage: str) -> None:
        """Set the step and stage for the next heartbeat. It is sent soon, because a new stage moves the master's
        deadline."""
        self._step, self._stage = step, stage
        if not self._has_moved:
            self._has_moved = True
            self._outbox.put(_MOVED)

    def close(self) -> None:
        """Send queued messages, for at most FLUSH_S seconds."""
        if self._link is not None:
            self._outbox.put(None)
            self._writer.join(FLUSH_S)

    def deafen(self) -> None:
        """Ignore every further message. For fault tests: only KILL then ends this worker."""
        self._is_deaf = True

    def _heartbeat(self) -> Message:
        return Message(type="heartbeat", step=self._step, stage=self._stage)

    def _write(self) -> None:
        assert self._link is not None
        reported_at = time.monotonic() - STAGE_HEARTBEAT_S
        while True:
            patience = STAGE_HEARTBEAT_S if self._has_moved else HEARTBEAT_EVERY_S
            try:
                message = self._outbox.get(timeout=max(0.0, reported_at + patience - time.monotonic()))
            except queue.Empty:
                self._has_moved = False
                message = self._heartbeat()
                reported_at = time.monotonic()
            if message is None:
                return
            if message is _MOVED:
                continue
            if message.type == "event_hint":
                self._hint = False
            line = msgspec.json.encode(msgspec.structs.replace(message, attempt=self._token)) + b"\n"
            if not self._is_sent(line):
                return

    def _is_sent(self, line: bytes) -> bool:
        """Send a line, as often as its file system fails. False: the master closed the link; the lifeline detects
        whether it is alive."""
        assert self._link is not None
        while True:
            try:
                self._link.send(line)
            except ConnectionError:
                return False
            except OSError:
                time.sleep(RETRY_S)
            else:
                return True

    def _read(self) -> None:
        assert self._link is not None
        for line in self._link.lines():
            self._take(line)
        self.requests.start.put(None)
        self.requests.head.put(None)

    def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line, type=Message)
        except msgspec.DecodeError:
            self.requests.dropped += 1
            return
        if message.attempt != self._token:
            self.requests.dropped += 1
        elif message.v != CONTRACT_VERSION:
            sys.stderr.write(f"error: the master speaks contract {message.v}, this worker {CONTRACT_VERSION}\n")
            os._exit(ExitCode.VERSION)
        else:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        if self._is_deaf:
            return
        if message.type == "abort":
            os._exit(ExitCode.ABORTED)
        elif message.type == "prepare" and self.requests.waits_for_head:
            self.requests.head.put(message)
        elif message.type in ("prepare", "load"):
            self.requests.waits_for_head = message.type == "load"
            self.requests.may_save.clear()
            self.requests.start.put(message)
        elif message.type == "start" and not self.requests.may_save.is_set():
            self.requests.may_save.set()
        elif message.type == "start":
            self.requests.start.put(message)
        elif message.type == "checkpoint":
            self.requests.checkpoint_ids.put(message.id)
        elif message.type in ("pause", "resume"):
            self.requests.is_paused = message.type == "pause"
        elif message.type == "stop":
            self.requests.stop_ids.put(message.id)
            self.requests.stop.set()
            self.requests.start.put(None)  # a standby that waits for its spec ends at once
            self.requests.head.put(None)
        else:
            self.send(Message(type="unsupported", id=message.id, reason=message.type))
        self.requests.news.put(None)
