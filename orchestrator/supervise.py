"""Supervises one worker: exchanges messages, tracks its progress, kills and reaps it."""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from orchestrator.deadlines import Watch
from orchestrator.launchers.launcher import Launcher, Life, Started
from profiles.errors import ExitCode
from workers.contract import MAX_MESSAGE_BYTES, Message

MAX_QUEUE = 256
DUMP_S = 2.0
"""Seconds for a hung worker to write its stacks."""

_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True)
class Kill:
    """Progress of killing a worker: the remaining signals, and when to send the next one."""

    reason: str
    next_at: float
    rest: tuple[int, ...]


class Worker:
    """One of our workers: a warm standby without an attempt, or active. An attempt takes its worker's token."""

    def __init__(self, launcher: Launcher, started: Started, log: Path, now: float) -> None:
        self.launcher = launcher
        self.handle = started.handle
        self.token = started.handle.token
        self.control = started.control
        self.ended = started.ended
        """Descriptor that becomes readable once the worker has ended."""
        self.log = log
        self.watch = Watch(spawned_at=now, heard_at=now, progress_at=now)
        self.step = 0
        self.kill: Kill | None = None
        self.life = Life()
        """State at the last poll."""
        self.fenced = 0
        """Number of messages dropped: another token, or malformed."""
        self._incoming = b""
        self._outgoing: deque[bytes] = deque()
        self.hears = True
        """False once the worker has closed its end."""
        self.is_deaf = False
        """Its queue overflowed or it sent an oversized message: it is treated as hung."""
        self.held_since: float | None = None
        """When it was first seen stopped by a signal; None: it is not stopped."""
        self._lifeline = started.lifeline

    # --- messages --------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue a message and send what fits; never blocks."""
        line = _encoder.encode(replace_token(message, self.token)) + b"\n"
        if len(self._outgoing) >= MAX_QUEUE:
            self.is_deaf = True
            return
        self._outgoing.append(line)
        self.flush()

    def flush(self) -> None:
        while self._outgoing:
            line = self._outgoing[0]
            try:
                sent = self.control.send(line)
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()  # the worker is ending; `reap` finds out how
                return
            if sent < len(line):
                self._outgoing[0] = line[sent:]
                return
            self._outgoing.popleft()

    def receive(self, now: float) -> list[Message]:
        """Read incoming messages. Malformed ones and those with another token are dropped and counted."""
        messages: list[Message] = []
        while True:
            try:
                chunk = self.control.recv(65536)
            except (BlockingIOError, ConnectionError, OSError):
                break
            if not chunk:
                self.hears = False
                break
            self._incoming += chunk
        *lines, self._incoming = self._incoming.split(b"\n")
        if len(self._incoming) > MAX_MESSAGE_BYTES:
            self.is_deaf, self._incoming = True, b""
        for line in lines:
            try:
                message = _decoder.decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError):
                self.fenced += 1
                continue
            if message.attempt != self.token:
                self.fenced += 1
                continue
            self._note(message, now)
            messages.append(message)
        return messages

    def _note(self, message: Message, now: float) -> None:
        changes: dict[str, object] = {"heard_at": now}
        if message.type == "ready":
            changes["is_ready"] = True
        if message.type == "heartbeat" and (message.step, message.stage) != (self.step, self.watch.stage):
            changes |= {"progress_at": now, "stage": message.stage}
            if self.watch.started_at is not None:  # quick steps outnumber heartbeats
                changes["steps_done"] = max(self.watch.steps_done, message.step - self.watch.first_step)
            self.step = message.step
        if "is_ready" in changes:
            changes.pop("is_ready")
            changes["ready"] = True
        self.watch = replace(self.watch, **changes)  # type: ignore[arg-type]

    # --- killing ---------------------------------------------------------------------------------------------

    def start_kill(self, reason: str, now: float, *, dump: bool) -> None:
        """Start killing the worker: USR2 if `dump` (stacks go to its log), then KILL to its session. `continue_kill`
        sends the remaining signals. TERM is useless, because workers ignore it."""
        if self.kill is None:
            self.kill = Kill(reason, now, (signal.SIGUSR2, signal.SIGKILL) if dump else (signal.SIGKILL,))
        self.continue_kill(now)

    def abort(self, reason: str, now: float, kill_s: float) -> None:
        """Ask the worker to exit now; KILL follows after `kill_s` seconds if it does not."""
        if self.kill is None:
            self.send(Message(type="abort"))
            self.kill = Kill(reason, now + kill_s, (signal.SIGKILL,))

    def continue_kill(self, now: float) -> None:
        while self.kill is not None and self.kill.rest and now >= self.kill.next_at and self.exit_code is None:
            number, *rest = self.kill.rest
            self.launcher.signal(self.handle, number)
            self.kill = replace(self.kill, next_at=now + DUMP_S, rest=tuple(rest))

    # --- life ------------------------------------------------------------------------------------------------

    def reap(self) -> bool:
        """True once it has ended and none of its processes is left."""
        if self.exit_code is None:
            self.life = self.launcher.poll(self.handle)
        return self.exit_code is not None

    def end(self) -> None:
        """Kill the worker unless it has ended, and wait until it is gone."""
        if not self.reap():
            self.launcher.signal(self.handle, signal.SIGKILL)
            self.life = self.launcher.wait(self.handle)

    @property
    def exit_code(self) -> int | None:
        """Exit code, -N after signal N; None while it lives."""
        return self.life.exit_code

    def go_on(self) -> None:
        """Send CONT, to continue a worker that a signal stopped."""
        self.launcher.signal(self.handle, signal.SIGCONT)

    def close(self) -> None:
        """Close all descriptors. This includes the lifeline, so a local worker that still lives will exit."""
        self.control.close()
        for fd in (self._lifeline, self.ended):
            if fd is not None:
                with suppress(OSError):
                    os.close(fd)


def replace_token(message: Message, token: str) -> Message:
    return msgspec.structs.replace(message, attempt=token)


def failure_class(exit_code: int, *, hung: str, oom_killed: bool, cause: str = "") -> str:
    """Name of an attempt's failure: `hung:STAGE`, a job's cause, `host_oom`, `signal:N`, an ExitCode's name, or
    `exit:N`."""
    if hung:
        return f"hung:{hung}"
    if cause:
        return cause
    if oom_killed and exit_code == -signal.SIGKILL:
        return "host_oom"
    if exit_code < 0:
        return f"signal:{-exit_code}"
    if exit_code in ExitCode.__members__.values() and exit_code != 0:
        return ExitCode(exit_code).name
    return f"exit:{exit_code}"
