"""Tells the service manager that started us that we are ready, alive and stopping (sd_notify's protocol).

One datagram each, never waited for: a manager that does not read cannot hold up a run. Without a manager, nothing is
sent. Source: sd_notify(3), `Type=notify` and `WatchdogSec=` in systemd.service(5).
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import MutableMapping

STATUS_EVERY_S = 5.0
SHARE_OF_WATCHDOG = 0.25
"""Of the watchdog's time between two signs of life: systemd advises half, and a turn of a busy master may be late."""


class Manager:
    """A service manager, or none. Takes its variables out of the environment, so that no child can speak for us."""

    def __init__(self, environment: MutableMapping[str, str], pid: int) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        usec, watched = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        is_watched = usec.isdigit() and int(usec) > 0 and watched in ("", str(pid))
        self._beat_every_s = int(usec) / 1e6 * SHARE_OF_WATCHDOG if is_watched else None
        self._beat_at = self._told_at = -math.inf
        self._is_ready = False
        self._status = ""

    def alive(self, now: float, status: str) -> None:
        """Call this in every turn of the loop. now: monotonic. The first call says that we are ready."""
        if self._socket is None:
            return
        lines = []
        if not self._is_ready:
            lines.append("READY=1")
        if self._beat_every_s is not None and now - self._beat_at >= self._beat_every_s:
            lines.append("WATCHDOG=1")
        is_new = status != self._status and now - self._told_at >= STATUS_EVERY_S
        if is_new:
            lines.append(f"STATUS={_one_line(status)}")
        if not lines or not self._send(lines):
            return  # the next turn tries again
        self._is_ready = True
        if "WATCHDOG=1" in lines:
            self._beat_at = now
        if is_new:
            self._status, self._told_at = status, now

    def stopping(self, status: str) -> None:
        """The run ends by itself, or because somebody asked for it."""
        if self._socket is not None:
            self._send(["STOPPING=1", f"STATUS={_one_line(status)}"])

    def _send(self, lines: list[str]) -> bool:
        assert self._socket is not None
        try:
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except OSError:
            return False
        return True


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


MANAGER = Manager(os.environ, os.getpid())
"""Of this process."""
