"""Makes the message files of a scheduler's worker look like the socket of a local worker.

A thread copies the master's lines from a socket to `requests.jsonl`, and the worker's lines from `replies.jsonl` to
that socket. It also keeps incrementing a counter in the file `master`, so the job can tell without comparing clocks
whether a master is present.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from orchestrator.launchers.changes import watch
from orchestrator.ready import wait_for_any
from state.layout import AttemptDir
from state.line_file import LineReader, append
from workers.contract import Message

BEAT_S = 2.0
NEEDED_AGAIN = ("ready", "started", "heartbeat", "checkpointed")
"""Types of message of which a new master needs the latest that was sent before it started."""


class Relay:
    """Relay for one worker. `control` is the master's socket; closing it ends the thread."""

    def __init__(self, directory: AttemptDir, on_turn: Callable[[], None], *, is_new: bool) -> None:
        """on_turn: called from a thread when the worker has started or ended. is_new: False if the worker may have sent
        messages to an earlier master."""
        self._on_turn = on_turn
        self.control, self._far = socket.socketpair()
        self.control.setblocking(False)
        self._directory = directory
        self._replies = LineReader(directory.replies)
        self._earlier = [] if is_new else latest(self._replies)
        self._requests: deque[bytes] = deque()
        """Lines of the master that are not in the file yet."""
        self._wake_reader, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._beats = 0
        self.heard_at = time.monotonic()
        """When the worker last wrote a message, by the clock of this host."""
        self._is_over = False
        threading.Thread(target=self._run, name=f"relay {directory.path.name}", daemon=True).start()

    def _run(self) -> None:
        directory, observer = self._directory, None
        try:
            with suppress(OSError):  # without an observer, this thread still looks every BEAT_S
                observer = watch(directory.path, (directory.replies.name, directory.job_end.name), self._on_change)
            with suppress(OSError):
                for line in self._earlier:
                    self._far.sendall(line + b"\n")
                self._carry()
        finally:
            if observer is not None:
                observer.stop()
                observer.join()
            self._far.close()
            os.close(self._wake_reader)
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _carry(self) -> None:
        next_beat, half = 0.0, b""
        while True:
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + BEAT_S
            self._write_requests()
            lines = self._replies.read()
            if lines:
                self.heard_at = time.monotonic()
            for line in lines:
                self._far.sendall(line + b"\n")
            if any(b'"ready"' in line or b'"done"' in line for line in lines) or self._has_ended():
                self._on_turn()
            ready = wait_for_any([self._far, self._wake_reader], max(0.0, next_beat - time.monotonic()))
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if self._far.fileno() in ready:
                chunk = self._far.recv(65536)
                if not chunk:
                    return
                *lines, half = (half + chunk).split(b"\n")
                self._requests += lines

    def _beat(self) -> None:
        self._beats += 1
        with suppress(OSError):
            self._directory.master.write_text(f"{os.getpid()} {self._beats}\n")

    def _write_requests(self) -> None:
        """Append the master's lines. What the file system does not take is tried again at the next turn."""
        with suppress(OSError):
            while self._requests:
                append(self._directory.requests, self._requests[0])
                self._requests.popleft()

    def _has_ended(self) -> bool:
        """True exactly once, after the job script has written its exit code."""
        before = self._is_over
        with suppress(OSError):
            self._is_over = before or self._directory.job_end.exists()
        return self._is_over and not before

    def _on_change(self) -> None:
        with suppress(OSError):  # a full pipe wakes the thread anyway; a closed one means it ended
            os.write(self._wake, b".")


def latest(replies: LineReader) -> list[bytes]:
    """The last line of each type that a new master needs, in the order in which they were sent. Reads to the end."""
    found: dict[str, bytes] = {}
    while lines := replies.read():
        for line in lines:
            with suppress(msgspec.MsgspecError):
                kind = msgspec.json.decode(line, type=Message).type
                if kind in NEEDED_AGAIN:
                    found.pop(kind, None)
                    found[kind] = line
    return list(found.values())
