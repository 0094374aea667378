"""The worker's end of the control socket: requests in, replies and heartbeats out, one JSON object a line.

Nothing here blocks training: a thread reads, another writes. While the master is stopped the writer waits alone.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

import msgspec

from profiles.errors import ExitCode
from workers.contract import CONTRACT_VERSION, HEARTBEAT_EVERY_S, MAX_MESSAGE_BYTES, Message

STAGE_HEARTBEAT_S = 0.2
"""Least time between heartbeats that only tell of another stage."""
FLUSH_S = 2.0


@dataclass
class Requests:
    """What the master wants, remembered until a step edge. Written by the reader thread, taken by the main thread."""

    checkpoint_ids: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    stop_ids: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    stop: threading.Event = field(default_factory=threading.Event)
    start: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)
    """Its path is that of spec.json. None: stopped before it began, or the master closed the socket."""
    dropped: int = 0
    """Messages with another token, or that were none."""

    def checkpoints_wanted(self) -> list[int]:
        """Ids of all checkpoint requests so far: one checkpoint answers them all."""
        return _drain(self.checkpoint_ids)

    def stops_wanted(self) -> list[int]:
        return _drain(self.stop_ids)


_MOVED = Message(type="moved")
"""Wakes the writer; never sent."""


def _drain(source: queue.SimpleQueue[int]) -> list[int]:
    found: list[int] = []
    while True:
        try:
            found.append(source.get_nowait())
        except queue.Empty:
            return found


class Control:
    """Both directions of the socket. Without a file descriptor there is no master: nothing is sent, no spec comes."""

    def __init__(self, fd: int | None, token: str) -> None:
        self.requests = Requests()
        self._token = token
        self._socket = socket.socket(fileno=fd) if fd is not None else None
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._hint = False
        self._step, self._stage = 0, "starting"
        self._has_moved = False
        self._is_deaf = False
        self._writer = threading.Thread(target=self._write, name="heartbeat", daemon=True)
        if self._socket is not None:
            self._socket.setblocking(True)
            threading.Thread(target=self._read, name="control", daemon=True).start()
            self._writer.start()
        else:
            self.requests.start.put(None)

    def send(self, message: Message) -> None:
        """Queue a reply. It is written by another thread; `close` waits for it."""
        self._outbox.put(message)

    def hint(self) -> None:
        """Tell the master that events.jsonl grew; many hints in a row are one message."""
        if not self._hint:
            self._hint = True
            self._outbox.put(Message(type="event_hint"))

    def at(self, step: int, stage: str) -> None:
        """Where the worker is, for the next heartbeat; a new stage is told soon, as it moves the master's deadline."""
        self._step, self._stage = step, stage
        if not self._has_moved:
            self._has_moved = True
            self._outbox.put(_MOVED)

    def close(self) -> None:
        """Send what is queued, for at most FLUSH_S seconds."""
        if self._socket is not None:
            self._outbox.put(None)
            self._writer.join(FLUSH_S)

    def deafen(self) -> None:
        """Ignore every further message. For the fault tests: nothing but KILL then ends this worker."""
        self._is_deaf = True

    def _heartbeat(self) -> Message:
        return Message(type="heartbeat", step=self._step, stage=self._stage)

    def _write(self) -> None:
        assert self._socket is not None
        told_at = time.monotonic() - STAGE_HEARTBEAT_S
        while True:
            patience = STAGE_HEARTBEAT_S if self._has_moved else HEARTBEAT_EVERY_S
            try:
                message = self._outbox.get(timeout=max(0.0, told_at + patience - time.monotonic()))
            except queue.Empty:
                self._has_moved = False
                message = self._heartbeat()
                told_at = time.monotonic()
            if message is None:
                return
            if message is _MOVED:
                continue
            if message.type == "event_hint":
                self._hint = False
            line = msgspec.json.encode(msgspec.structs.replace(message, attempt=self._token)) + b"\n"
            try:
                self._socket.sendall(line)
            except OSError:
                return  # the master closed it; whether the master lives is the lifeline's question

    def _read(self) -> None:
        assert self._socket is not None
        with self._socket.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline(MAX_MESSAGE_BYTES)
                except OSError:
                    line = b""
                if not line:
                    self.requests.start.put(None)
                    return
                self._take(line)

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
        elif message.type == "start":
            self.requests.start.put(message)
        elif message.type == "checkpoint":
            self.requests.checkpoint_ids.put(message.id)
        elif message.type == "stop":
            self.requests.stop_ids.put(message.id)
            self.requests.stop.set()
            self.requests.start.put(None)  # a standby that waits for its spec ends at once
        else:
            self.send(Message(type="unsupported", id=message.id, reason=message.type))
