"""Measures which layers work on this machine: each one is enabled alone and must stop an attack.

A version number or a successful system call proves nothing; a blocked attack does. Takes about two seconds.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from workers.sandbox.lane import ZygoteDied
from workers.sandbox.limits import LAYERS, OK, Limits
from workers.sandbox.pool import Sandbox
from workers.sandbox.result import Status

MODULES = ("os", "socket", "ctypes")
NEEDS_USERNS = frozenset({"pidns", "netns", "ipcns", "mountns", "utsns"})

ATTACKS = {
    "landlock": "import os\ndef f(port, pid):\n    return os.listdir('/') != [] and 'the root directory was listed'",
    "seccomp": "import socket\ndef f(port, pid):\n    socket.socket(socket.AF_UNIX)\n    return 'a socket was made'",
    "userns": (
        "def f(port, pid):\n    rows = open('/proc/self/uid_map').read().split()\n"
        "    return rows[2:] != ['1'] and 'every user of the machine exists'"
    ),
    "pidns": "import os\ndef f(port, pid):\n    os.kill(pid, 0)\n    return 'the caller could be signalled'",
    "netns": (
        "import socket\ndef f(port, pid):\n    socket.create_connection(('127.0.0.1', port), 2)\n"
        "    return 'the loopback network was reached'"
    ),
    "ipcns": (
        "import ctypes\ndef f(port, pid):\n    found = ctypes.CDLL(None).shmget(pid, 0, 0)\n"
        "    return found >= 0 and 'shared memory of the machine was found'"
    ),
    "mountns": "import os\ndef f(port, pid):\n    return os.listdir('/') != [] and 'the root directory was listed'",
    "utsns": (
        "import socket\ndef f(port, pid):\n"
        "    return socket.gethostname() != 'sandbox' and 'the name of the machine was read'"
    ),
}
"""Layer -> a program that attacks it. If the layer holds it fails or returns False, else it returns what it did."""


@dataclass(frozen=True)
class Layer:
    """Probe result of one layer."""

    name: str
    holds: bool
    reason: str
    """How the attack was stopped, or why the layer does not hold."""


def layers() -> list[Layer]:
    """Probe every layer, in the order of `LAYERS`, each with its own sandbox."""
    with _canaries() as inputs:
        return [_measure(name, inputs) for name in LAYERS]


def _measure(name: str, inputs: str) -> Layer:
    alone = {name, "userns"} if name in NEEDS_USERNS else {name}
    limits = Limits(
        cpu_s=5, modules=MODULES, allow_weak=True, without=tuple(layer for layer in LAYERS if layer not in alone)
    )
    try:
        with Sandbox(limits, jobs=1) as sandbox:
            if (state := sandbox.layers[name]) != OK:
                return Layer(name, False, state)
            result = sandbox.execute(ATTACKS[name], inputs)
    except (ZygoteDied, OSError) as error:
        return Layer(name, False, f"the sandbox does not start with this layer: {error}")
    if result.status is Status.OK and result.value != "False":
        return Layer(name, False, f"it was put up, but {result.value}")
    refused = f"{result.error_type}: {result.message}" if result.status is Status.ERROR else "nothing was there"
    return Layer(name, True, f"an attack was refused ({refused})")


@contextmanager
def _canaries() -> Iterator[str]:
    """Targets for the attacks: a listening port, this process, a shared memory segment."""
    with socket.socket() as listener, _shared_memory(os.getpid()):
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield f"{listener.getsockname()[1]}, {os.getpid()}"


@contextmanager
def _shared_memory(key: int) -> Iterator[None]:
    import ctypes

    ipc_create, ipc_remove = 0o1000, 0
    libc = ctypes.CDLL(None)
    found = libc.shmget(key, ctypes.c_size_t(4096), ipc_create | 0o666)
    try:
        yield
    finally:
        if found >= 0:
            libc.shmctl(found, ipc_remove, None)


def table(found: list[Layer], write: Callable[[str], object]) -> None:
    """Print the layers as a human-readable table."""
    for layer in found:
        write(f"{layer.name:10} {'yes' if layer.holds else 'NO ':3}  {layer.reason}\n")


def as_json(found: list[Layer], write: Callable[[str], object]) -> None:
    """Print the layers as JSON."""
    write(json.dumps([asdict(layer) for layer in found], indent=2) + "\n")
