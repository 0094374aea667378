"""What the code server answered, told by verl's reward processes to the worker: lines in the folder of `signals.py`.

Each process has a file of its own, as they may be on different hosts. A request that was sent again and answered then
is one answer, a verdict: a slow or busy server ends no run.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from pathlib import Path

from workers.sandbox.server.tally import VERDICT, WINDOW, stop_reason
from workers.verl.tail import Tail

ADDRESS = "code-server"
"""File with the server's URL. Its path holds the secret, which thus stands in no list of processes or settings."""
_ANSWERS = "answers-"


def note(control: Path, kind: str) -> None:
    """One answer. kind: VERDICT, or in a few words what came in its place."""
    with (control / f"{_ANSWERS}{socket.gethostname()}-{os.getpid()}").open("ab") as file:
        file.write(f"{' '.join(kind.split())}\n".encode())


class Verdicts:
    """All answers of a job, as far as they were read."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._tails: dict[Path, Tail] = {}
        self._newest: deque[str] = deque(maxlen=WINDOW)
        self._lost: Counter[str] = Counter()

    def read(self) -> None:
        """Take what came since the last call."""
        for path in sorted(self._control.glob(f"{_ANSWERS}*")):
            for raw in self._tails.setdefault(path, Tail(path)).lines():
                kind = raw.decode(errors="replace").strip()
                self._newest.append(kind)
                if kind != VERDICT:
                    self._lost[kind] += 1

    def take_lost(self) -> Counter[str]:
        """Lost answers by kind since the last call of this."""
        found, self._lost = self._lost, Counter()
        return found

    @property
    def stop_reason(self) -> str | None:
        """Why the attempt must end, by the newest answers."""
        return stop_reason(self._newest)
