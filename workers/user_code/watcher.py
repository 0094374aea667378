"""Starts the process that runs the user's code, keeps a bounded log of its output, and ends all that it leaves.

`python -m workers.user_code.watcher HOST SOCKET LIFELINE LOG`, for `process.py` alone; HOST is the module that serves.
This process runs nothing of the user's. When the host ends, or the other end of the lifeline closes, it kills every
process below itself, also those that became daemons, and exits: with the host's code, or with 128 and its signal.
"""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every other import: their default action kills the process
from workers import process

process.ignore_signals()

import importlib
import os
import select
import sys
import traceback
from pathlib import Path

from workers.external.processes import adopt_orphans, end_children
from workers.user_code.frames import LOG_BYTES

CHUNK = 1 << 16


class Log:
    """Keeps the newest LOG_BYTES to 2 * LOG_BYTES of what is written."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size if path.exists() else 0

    def write(self, data: bytes) -> None:
        try:
            if self._size + len(data) > LOG_BYTES:
                if self._path.exists():
                    self._path.replace(f"{self._path}.1")
                self._size = 0
            with self._path.open("ab") as file:
                file.write(data)
            self._size += len(data)
        except OSError:
            pass  # a full disk must not stop a reward


def main(arguments: list[str]) -> int:
    host, connection, lifeline, log = arguments[0], int(arguments[1]), int(arguments[2]), Log(Path(arguments[3]))
    adopt_orphans()
    printed, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(lifeline)
        os.close(printed)
        _become_host(host, connection, out)
    os.close(connection)
    os.close(out)
    ended = os.pidfd_open(pid)
    waiting = select.poll()
    for fd in (lifeline, printed, ended):
        waiting.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        ready = {fd for fd, _ in waiting.poll()}
        if printed in ready:
            data = os.read(printed, CHUNK)
            log.write(data)
            if data and ended not in ready and lifeline not in ready:
                continue
            if not data:
                waiting.unregister(printed)
        if ended in ready or lifeline in ready:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended in ready else 0
    end_children()
    _drain(printed, log)
    return code if code >= 0 else 128 - code


def _drain(printed: int, log: Log) -> None:
    """What was printed before the end. No process is left that could print more."""
    os.set_blocking(printed, False)
    try:
        while data := os.read(printed, CHUNK):
            log.write(data)
    except BlockingIOError:
        pass


def _become_host(host: str, connection: int, out: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(out)
    try:
        importlib.import_module(host).main(connection)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
