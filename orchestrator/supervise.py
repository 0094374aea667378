"""One worker process, seen from outside: send, hear, watch, kill, reap."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from orchestrator.deadlines import Watch
from orchestrator.launchers.local import Handle
from profiles.errors import ExitCode
from workers.contract import ATTEMPT_VARIABLE, MAX_MESSAGE_BYTES, Message

MAX_QUEUE = 256
DUMP_S = 2.0
"""Seconds that a hung worker gets to write its stacks."""

_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True)
class Kill:
    """How far the killing of a worker has come: signals are sent in order, each with its patience."""

    reason: str
    next_at: float
    rest: tuple[int, ...]


class Worker:
    """A process of ours. It may be a standby (warm, no attempt) or active (an attempt's token is its own token)."""

    def __init__(self, handle: Handle, token: str, log: Path, now: float) -> None:
        self.handle = handle
        self.pid = handle.pid
        self.token = token
        self.log = log
        self.watch = Watch(spawned_at=now, heard_at=now, progress_at=now)
        self.step = 0
        self.kill: Kill | None = None
        self.status: int | None = None
        """Wait status once reaped."""
        self.fenced = 0
        """Messages dropped because they carried another token."""
        self._incoming = b""
        self._outgoing: deque[bytes] = deque()
        self.hears = True
        """False once the worker closed its end."""
        self.is_deaf = False
        """Its queue overflowed, or its socket broke while it lives: treated as hung."""
        self.held_since: float | None = None
        """Since when it has been seen stopped by a signal."""
        self.process_started = _process_started(self.pid)

    # --- messages --------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue a line; never blocks."""
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
                sent = self.handle.control.send(line)
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()  # it is going down; reaping says how
                return
            if sent < len(line):
                self._outgoing[0] = line[sent:]
                return
            self._outgoing.popleft()

    def receive(self, now: float) -> list[Message]:
        """Messages that came in; those with another token are dropped and counted."""
        messages: list[Message] = []
        while True:
            try:
                chunk = self.handle.control.recv(65536)
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
            if self.watch.started_at is not None:  # heartbeats are fewer than quick steps
                changes["steps_done"] = max(self.watch.steps_done, message.step - self.watch.first_step)
            self.step = message.step
        if "is_ready" in changes:
            changes.pop("is_ready")
            changes["ready"] = True
        self.watch = replace(self.watch, **changes)  # type: ignore[arg-type]

    # --- killing ---------------------------------------------------------------------------------------------

    def start_kill(self, reason: str, now: float, *, dump: bool) -> None:
        """Begin USR2 (stacks into the log), KILL to the group; `continue_kill` goes on with it. Workers ignore TERM."""
        if self.kill is None:
            self.kill = Kill(reason, now, (signal.SIGUSR2, signal.SIGKILL) if dump else (signal.SIGKILL,))
        self.continue_kill(now)

    def abort(self, reason: str, now: float, kill_s: float) -> None:
        """Ask it to leave now; KILL follows after kill_s seconds if it does not."""
        if self.kill is None:
            self.send(Message(type="abort"))
            self.kill = Kill(reason, now + kill_s, (signal.SIGKILL,))

    def continue_kill(self, now: float) -> None:
        while self.kill is not None and self.kill.rest and now >= self.kill.next_at and self.status is None:
            number, *rest = self.kill.rest
            with suppress(ProcessLookupError):
                if number == signal.SIGUSR2:
                    os.kill(self.pid, number)
                else:
                    os.killpg(self.pid, number)
            self.kill = replace(self.kill, next_at=now + DUMP_S, rest=tuple(rest))

    # --- life ------------------------------------------------------------------------------------------------

    def reap(self) -> bool:
        """True once the process has ended; its wait status is then in `status`, and its group is gone."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid == 0:
                return False
            self.status = status
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return True

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it lives."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    def is_stopped_by_signal(self) -> bool:
        """True if somebody sent it SIGSTOP, or a debugger holds it."""
        with suppress(psutil.Error):
            return bool(psutil.Process(self.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
        return False

    def rss_bytes(self) -> int | None:
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return None

    def close(self) -> None:
        """Give the descriptors back. The lifeline goes too, so call it when the process has ended, or shall end."""
        self.handle.control.close()
        for fd in (self.handle.lifeline, self.handle.pidfd):
            with suppress(OSError):
                os.close(fd)


def replace_token(message: Message, token: str) -> Message:
    return msgspec.structs.replace(message, attempt=token)


def _process_started(pid: int) -> float:
    with suppress(psutil.Error):
        return float(psutil.Process(pid).create_time())
    return 0.0


def failure_class(exit_code: int, *, hung: str, oom_killed: bool) -> str:
    """Name of what ended an attempt: `hung:STAGE`, `host_oom`, `signal:N`, or an ExitCode's name."""
    if hung:
        return f"hung:{hung}"
    if oom_killed and exit_code == -signal.SIGKILL:
        return "host_oom"
    if exit_code < 0:
        return f"signal:{-exit_code}"
    if exit_code in ExitCode.__members__.values() and exit_code != 0:
        return ExitCode(exit_code).name
    return f"exit:{exit_code}"


def strays(owner: str, tokens: frozenset[str] | None = None) -> list[psutil.Process]:
    """Living processes that carry the owner's mark (and one of the tokens). Found by environment, never by name.

    owner: of `copies.owner_of`, so that a copy of a run never takes the processes of the original for its own.
    """
    assert owner, "without an owner every process would carry its mark"
    found = []
    me = os.getpid()
    for process in psutil.process_iter():
        if process.pid == me:
            continue
        with suppress(psutil.Error, OSError):
            mark = process.environ().get(ATTEMPT_VARIABLE, "")
            theirs, _, token = mark.partition("/")
            if theirs == owner and (tokens is None or token in tokens):
                found.append(process)
    return found


def has_orphans(known: Iterable[int]) -> bool:
    """Whether anything that a dead worker started may still live: as subreaper, its orphans are children of ours.

    Far cheaper than reading every process's environment; True where the kernel does not tell.
    """
    try:
        lists = [Path(task.path, "children").read_text() for task in os.scandir("/proc/self/task")]
    except OSError:
        return True
    return bool({int(pid) for children in lists for pid in children.split()} - set(known))


def kill_strays(owner: str, tokens: frozenset[str] | None = None) -> int:
    """KILL every stray and wait until it is gone. Returns how many there were."""
    found = strays(owner, tokens)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=5)
    return len(found)
