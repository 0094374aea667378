"""Things of the host that an attack would like to reach, and the proof that it did not."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRET = "text of the canary"
IPC_CREATE, IPC_REMOVE = 0o1000, 0


@dataclass
class Canaries:
    """Open to everybody on purpose: only the sandbox is between them and the program."""

    directory: Path
    listener: socket.socket
    datagrams: socket.socket
    abstract: socket.socket
    victim: subprocess.Popen[bytes]
    shared_memory: int
    answer: str

    @property
    def facts(self) -> str:
        """Argument text that tells a program where everything is. The answer is not in it, only its reverse is."""
        facts: dict[str, Any] = {
            "file": str(self.directory / "file"),
            "dir": str(self.directory),
            "port": self.listener.getsockname()[1],
            "abstract": self.abstract.getsockname()[1:].decode(),
            "victim": self.victim.pid,
            "parent": os.getpid(),
            "shm": os.getpid(),
            "answer": self.answer[::-1],
        }
        return repr(facts)

    def harm(self) -> list[str]:
        """What was touched."""
        found = []
        file = self.directory / "file"
        if [path.name for path in self.directory.iterdir()] != ["file"]:
            found.append("the directory changed")
        elif file.read_text() != SECRET or file.stat().st_mode & 0o777 != 0o666:
            found.append("the file changed")
        if self.victim.poll() is not None:
            found.append("the neighbour died")
        for name, door in (("tcp", self.listener), ("udp", self.datagrams), ("abstract", self.abstract)):
            try:
                door.recv(1) if door is self.datagrams else door.accept()
                found.append(f"somebody came by {name}")
            except BlockingIOError:
                pass
        return found


def _drop() -> None:
    """Run the neighbour as the user that programs run as: nothing but the sandbox keeps them apart."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65_534, 65_534, 65_534)
        os.setresuid(65_534, 65_534, 65_534)


@contextmanager
def canaries(directory: Path) -> Iterator[Canaries]:
    """Set them out in an empty directory, collect them at the end."""
    for path in (directory, *list(directory.parents)[:4]):  # up to pytest's own, which it makes for us alone
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o755)
    directory.chmod(0o777)
    (directory / "file").write_text(SECRET)
    (directory / "file").chmod(0o666)
    libc = ctypes.CDLL(None)
    shared = libc.shmget(os.getpid(), ctypes.c_size_t(4096), IPC_CREATE | 0o666)
    # Waits for input that never comes.
    victim = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, preexec_fn=_drop, env={"CANARY": SECRET})
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        udp.bind(tcp.getsockname())
        unix.bind(f"\0{secrets.token_hex(8)}")
        for door in (tcp, unix):
            door.listen(16)
        for door in (tcp, udp, unix):
            door.setblocking(False)
        try:
            yield Canaries(directory, tcp, udp, unix, victim, shared, f"answer {secrets.token_hex(8)}")
        finally:
            victim.kill()
            victim.communicate()
            if shared >= 0:
                libc.shmctl(shared, IPC_REMOVE, None)
