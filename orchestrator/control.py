"""The control socket in the run directory, for `checkpoint`, `stop`, `pause` and their like from another terminal.

A client sends one JSON line and receives one when its command is done. The socket is 0600, and the peer must have our
uid. Where the run's file system holds no sockets (sshfs, some mounts of Windows shares) it has a name of this host's
kernel alone. The server never blocks, and drops idle clients so that they cannot use up its descriptors.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.alive import master_pid
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir

COMMANDS = frozenset({"checkpoint", "stop", "abort", "status", "pause", "resume", "validate", "cycles"})
ALWAYS_HEARD = frozenset({"stop", "abort", "status"})
MAX_LINE = 4096
MAX_CLIENTS = 16
"""Connections without a whole line at a time, and as many requests in progress."""
LONGEST_S = 1e8
"""Three years; sockets know no longer time."""
STARTING_S = 10.0
"""How long `ask` waits for a master that holds the lock to listen: it recovers and opens the store first."""
IDLE_S = 5.0
"""A client that has not sent a whole line by then is dropped."""
REST_S = 1.0
"""Pause in accepting after running out of descriptors; otherwise the ready listener would end every wait at once."""
BACKLOG = 128
"""Connections queued by the kernel. Beyond this, `ask` reports that no master is running."""
NO_SOCKETS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What file systems say that hold no sockets."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A short path through /proc/self/fd: a Unix socket's path is limited to 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _name_in_the_kernel(run: RunDir) -> str:
    """An abstract address. It has no permissions, so both ends check each other's uid."""
    return f"\0longhaul-{hashlib.sha256(os.fsencode(run.root.resolve())).hexdigest()[:32]}"


@dataclass
class Client:
    """One connection; `answer` closes it."""

    connection: socket.socket
    since: float
    """Monotonic time of the connection."""
    command: str = ""
    change: str = ""
    """`cycles` only: `+2`, `-1` or a number."""
    is_open: bool = True
    buffer: bytes = field(default=b"", repr=False)

    def answer(self, *, until_exit: bool = False, **facts: Any) -> None:
        """Send the answer and close. until_exit: leave closing to the kernel, so that it marks the master's exit."""
        with suppress(OSError):
            self.connection.setblocking(True)
            self.connection.settimeout(0.2)
            self.connection.sendall(json.dumps(facts).encode() + b"\n")
        if until_exit:
            self.connection.detach()
        else:
            self.close()

    @property
    def has_hung_up(self) -> bool:
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.is_open = False
        self.connection.close()


class Server:
    """Listens from its creation on. `poll` returns the clients whose command has arrived."""

    def __init__(self, run: RunDir) -> None:
        self.path = run.control_socket
        self.path.unlink(missing_ok=True)
        self._inode = 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with _short_path(self.path) as short:
                self.listener.bind(short)
            self._inode = self.path.stat().st_ino
            self.path.chmod(0o600)
        except OSError as error:
            if error.errno not in NO_SOCKETS:
                raise
            self.listener.bind(_name_in_the_kernel(run))
        self.listener.listen(BACKLOG)
        self.waiting: list[Client] = []
        self._answering: list[Client] = []
        """Clients whose command is in progress."""
        self._rests_until = float("-inf")

    def sockets(self, now: float) -> list[socket.socket]:
        """The sockets to wait for; without the listener while accepting is paused."""
        listener = [self.listener] if now >= self._rests_until else []
        return [*listener, *(client.connection for client in self.waiting)]

    def poll(self, now: float) -> list[Client]:
        """Accept connections, read commands and drop idle clients. now: monotonic."""
        self._accept(now)
        ready = []
        for client in list(self.waiting):
            if self._read(client):
                self.waiting.remove(client)
                if client.command in COMMANDS and self._is_full(client.command):
                    client.answer(ok=False, error=f"{MAX_CLIENTS} requests are in progress; try again later")
                elif client.command in COMMANDS:
                    self._answering.append(client)
                    ready.append(client)
                else:
                    client.answer(ok=False, error="unknown command")
            elif now - client.since > IDLE_S:
                self._let_go(client)
        return ready

    def _accept(self, now: float) -> None:
        if now < self._rests_until:
            return
        for _ in range(MAX_CLIENTS):  # bounded, so that a flood of connections cannot stall the master
            try:
                connection, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    self._rests_until = now + REST_S
                    self._let_go_of_the_oldest()
                    return
                continue  # the client hung up first
            if _peer_uid(connection) != os.getuid():
                connection.close()
                continue
            connection.setblocking(False)
            if len(self.waiting) >= MAX_CLIENTS:
                self._let_go_of_the_oldest()
            self.waiting.append(Client(connection, now))

    def _is_full(self, command: str) -> bool:
        """Whether too many requests are in progress for one more. Those of clients that hung up do not count, and who
        waits for a long step must not keep others from stopping the run."""
        self._answering = [client for client in self._answering if client.is_open and not client.has_hung_up]
        most = MAX_CLIENTS * 4 if command in ALWAYS_HEARD else MAX_CLIENTS
        return len(self._answering) >= most

    def _let_go_of_the_oldest(self) -> None:
        """Drop the oldest client without a complete command."""
        if self.waiting:
            self._let_go(min(self.waiting, key=lambda client: client.since))

    def _let_go(self, client: Client) -> None:
        self.waiting.remove(client)
        client.close()

    def _read(self, client: Client) -> bool:
        """True once the client's line is complete, or can no longer become so."""
        try:
            chunk = client.connection.recv(MAX_LINE)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        client.buffer += chunk
        if b"\n" in client.buffer:
            with suppress(ValueError, AttributeError, RecursionError):
                asked = json.loads(client.buffer.split(b"\n")[0])
                client.command, client.change = str(asked.get("command", "")), str(asked.get("change", ""))
            return True
        return not chunk or len(client.buffer) > MAX_LINE

    def close(self) -> None:
        for client in self.waiting:
            client.close()
        self.listener.close()
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:  # not of a master on another host that took the run over
                self.path.unlink(missing_ok=True)


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _connect(connection: socket.socket, run: RunDir) -> None:
    """Raises OSError if no master of ours listens."""
    try:
        with _short_path(run.control_socket) as short:
            connection.connect(short)
    except FileNotFoundError:
        connection.connect(_name_in_the_kernel(run))
        if _peer_uid(connection) != os.getuid():
            raise PermissionError(errno.EPERM, "another user listens there") from None


def is_listening(run: RunDir) -> bool:
    """Whether the master of `run` takes commands yet: it holds the lock for a moment before it does."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection, suppress(OSError):
        connection.settimeout(1.0)
        _connect(connection, run)
        return True
    return False


def _connected(run: RunDir, timeout_s: float, patience_s: float = 0.0) -> socket.socket:
    """A connection to the master of `run`. patience_s: how long to wait for one that holds the lock and is silent.

    Raises LonghaulError: INPUT where no master runs, PERMISSION where another user owns the run.
    """
    until = time.monotonic() + patience_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            _connect(connection, run)
        except PermissionError as error:
            connection.close()
            raise LonghaulError(
                f"run '{run.name}' is another user's: only its owner may steer it",
                kept="the run, unchanged",
                next_command=f"python -m orchestrator status --run {run.name}",
                exit_code=ExitCode.PERMISSION,
            ) from error
        except OSError as error:
            connection.close()
            pid = master_pid(run, heartbeat_age_s=math.inf)  # on this host: no other's master can be asked
            if pid is None or time.monotonic() >= until:
                raise _no_master(run, pid) from error
        else:
            return connection
        time.sleep(0.05)


def _no_master(run: RunDir, pid: int | None) -> LonghaulError:
    starting = f"the process {pid} holds run '{run.name}' and takes no commands: it has just begun, or is about to end"
    return LonghaulError(
        f"no master is running on '{run.name}'" if pid is None else starting,
        kept="the run, unchanged",
        next_command=f"python -m orchestrator {'run' if pid is None else 'status'} --run {run.name}",
        exit_code=ExitCode.INPUT,
    )


class Call:
    """A request whose answer is not waited for: `take` it once `fileno` is readable."""

    def __init__(self, run: RunDir, command: str, change: str = "") -> None:
        """Raises LonghaulError, as `ask` does, if there is no master."""
        self.command = command
        self._connection = _connected(run, 1.0)
        self._buffer = b""
        with suppress(OSError):  # `take` finds out
            self._connection.sendall(request(command, change))
        self._connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self) -> dict[str, Any] | None:
        """The answer; None: it has not come yet."""
        try:
            while chunk := self._connection.recv(65536):
                self._buffer += chunk
        except BlockingIOError:
            if b"\n" not in self._buffer:
                return None
        except OSError:
            pass
        self._connection.close()
        try:
            return dict(json.loads(self._buffer.split(b"\n")[0]))
        except ValueError:
            return {"ok": False, "error": "the master ended without an answer"}

    def close(self) -> None:
        self._connection.close()


def seconds(text: str) -> float:
    """The value of `--timeout`. Raises ArgumentTypeError."""
    with suppress(ValueError):
        if 0 < (value := float(text)) <= LONGEST_S:
            return value
    raise argparse.ArgumentTypeError(f"a number of seconds above 0 and up to {LONGEST_S:,.0f} is needed, not {text!r}")


def request(command: str, change: str = "") -> bytes:
    """The line that a client sends."""
    return json.dumps({"command": command, **({"change": change} if change else {})}).encode() + b"\n"


def ask(run: RunDir, command: str, timeout_s: float, *, change: str = "") -> dict[str, Any]:
    """Send a command to the master of `run` and wait for its answer. change: see `Client`.

    A master that has just begun is waited for. Raises LonghaulError(INPUT) if no master is running, STORE if it does
    not answer within timeout_s seconds.
    """
    with contextlib.closing(_connected(run, timeout_s, min(timeout_s, STARTING_S))) as connection:
        try:
            connection.sendall(request(command, change))
            with connection.makefile("rb") as lines:
                line = lines.readline()
                lines.read()  # until it closes, which after `stop` is the master's exit
            if not line:
                raise OSError("the connection was closed")
            return dict(json.loads(line))
        except (OSError, ValueError) as error:
            raise LonghaulError(
                f"the master of '{run.name}' did not answer '{command}': {error}",
                kept="the run; the master may still do what you asked",
                next_command=f"python -m orchestrator status --run {run.name}",
                exit_code=ExitCode.STORE,
            ) from error
