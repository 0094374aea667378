"""The control socket in the run directory: `checkpoint`, `stop` and `status` from another terminal.

One JSON line in, one JSON line out when it is done. 0600, and the peer's uid must be ours. The server never blocks, and
whoever connects and says nothing takes neither its descriptors nor its time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir

COMMANDS = frozenset({"checkpoint", "stop", "abort", "status"})
MAX_LINE = 4096
MAX_CLIENTS = 16
"""Connections at a time, those that wait for an answer included. A person and a few scripts need no more."""
IDLE_S = 5.0
"""A command comes at once; whoever has not said a whole line by then is let go."""
REST_S = 1.0
"""No connection is taken for so long where there is no descriptor for one: the listener would be ready all the time."""
BACKLOG = 128
"""Connections that wait to be taken: where they are more, `ask` is told that there is no master."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A Unix socket's path may have 107 bytes; a run directory may be deeper. /proc/self/fd makes it short."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@dataclass
class Client:
    """One connection; `answer` closes it."""

    connection: socket.socket
    since: float
    """When it connected (monotonic)."""
    command: str = ""
    is_open: bool = True
    buffer: bytes = field(default=b"", repr=False)

    def answer(self, *, until_exit: bool = False, **facts: Any) -> None:
        """Send the answer and close. until_exit: the kernel closes, when this process is gone and its lock free."""
        with suppress(OSError):
            self.connection.setblocking(True)
            self.connection.settimeout(0.2)
            self.connection.sendall(json.dumps(facts).encode() + b"\n")
        if until_exit:
            self.connection.detach()
        else:
            self.close()

    def close(self) -> None:
        self.is_open = False
        self.connection.close()


class Server:
    """Listens from its creation on; `poll` gives the clients whose command has arrived."""

    def __init__(self, run: RunDir) -> None:
        self.path = run.control_socket
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with _short_path(self.path) as short:
            self.listener.bind(short)
        self.path.chmod(0o600)
        self.listener.listen(BACKLOG)
        self.waiting: list[Client] = []
        self._answering: list[Client] = []
        """Whose command is under way."""
        self._rests_until = float("-inf")

    def sockets(self, now: float) -> list[socket.socket]:
        """What to wait for. A listener that cannot be served would end every wait at once."""
        listener = [self.listener] if now >= self._rests_until else []
        return [*listener, *(client.connection for client in self.waiting)]

    def poll(self, now: float) -> list[Client]:
        """Take connections, hear them, let go of who says nothing. now: monotonic."""
        self._accept(now)
        ready = []
        for client in list(self.waiting):
            if self._read(client):
                self.waiting.remove(client)
                if client.command in COMMANDS:
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
        for _ in range(MAX_CLIENTS):  # whoever connects without end does not keep the master from its work
            try:
                connection, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    self._rests_until = now + REST_S
                    self._let_go_of_the_oldest()
                    return
                continue  # it hung up before it was taken
            if _peer_uid(connection) != os.getuid():
                connection.close()
                continue
            connection.setblocking(False)
            self._answering = [client for client in self._answering if client.is_open]
            client = Client(connection, now)
            if len(self._answering) >= MAX_CLIENTS:
                client.answer(ok=False, error=f"{MAX_CLIENTS} requests are under way; ask again later")
                continue
            if len(self.waiting) + len(self._answering) >= MAX_CLIENTS:
                self._let_go_of_the_oldest()
            self.waiting.append(client)

    def _let_go_of_the_oldest(self) -> None:
        """Of those that have said nothing, unless its line is there by now."""
        if self.waiting:
            self._let_go(min(self.waiting, key=lambda client: client.since))

    def _let_go(self, client: Client) -> None:
        self.waiting.remove(client)
        client.close()

    def _read(self, client: Client) -> bool:
        """True once the client's line is whole, or can never be."""
        try:
            chunk = client.connection.recv(MAX_LINE)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        client.buffer += chunk
        if b"\n" in client.buffer:
            with suppress(ValueError, AttributeError):
                client.command = str(json.loads(client.buffer.split(b"\n")[0]).get("command", ""))
            return True
        return not chunk or len(client.buffer) > MAX_LINE

    def close(self) -> None:
        for client in self.waiting:
            client.close()
        self.listener.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def ask(run: RunDir, command: str, timeout_s: float) -> dict[str, Any]:
    """Send a command to the master of `run` and wait for its answer.

    Raises LonghaulError(INPUT) if no master is running, STORE if it does not answer within timeout_s seconds.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(timeout_s)
        try:
            with _short_path(run.control_socket) as short:
                connection.connect(short)
        except OSError as error:
            raise LonghaulError(
                f"no master is running on '{run.name}'",
                kept="the run, unchanged",
                next_command=f"python -m orchestrator run --run {run.name}",
                exit_code=ExitCode.INPUT,
            ) from error
        try:
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
                lines.read()  # to its end: after `stop` that is the end of the master
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
