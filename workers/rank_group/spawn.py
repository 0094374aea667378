"""Starts and ends the processes of ranks other than 0, for the leader and for `host.py` on the other hosts."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from state import python
from workers.contract import CONTROL_FD_VARIABLE, HOST_VARIABLE, LIFELINE_FD_VARIABLE
from workers.memory.cards import card_of

RANK_VARIABLE = "LONGHAUL_RANK"
"""Rank of a process that finds its leader through the meeting file."""
GRACE_S = 0.5
"""Seconds to wait after the first lost rank. Other ranks fail because of it, and the report should name the cause."""
CLOSE_S = 5.0
TAIL_LINES = 3


@dataclass
class RankProcess:
    """A process that we started. lifeline: our end of its pipe; the process exits when it closes."""

    process: subprocess.Popen[bytes]
    lifeline: int
    log: Path


def spawn(log: Path, place: int, environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> RankProcess:
    """Start a rank. Call from the main thread: the parent-death signal of a child is tied to the thread that forked it.

    place: index among the ranks of this host, which selects the GPU.
    """
    reader, lifeline = os.pipe2(os.O_CLOEXEC)
    hidden = (CONTROL_FD_VARIABLE, HOST_VARIABLE)
    given = {name: value for name, value in os.environ.items() if name not in hidden}
    given |= {LIFELINE_FD_VARIABLE: str(reader), "CUDA_VISIBLE_DEVICES": card_of(place, os.environ), **environment}
    with log.open("ab") as output:
        process = subprocess.Popen(
            python.command("workers.follower"),
            env=python.finding_us(given),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(*pass_fds, reader),
        )
    os.close(reader)
    return RankProcess(process, lifeline, log)


def end_all(processes: Sequence[RankProcess], seconds: float = CLOSE_S) -> None:
    """Close all lifelines, which makes the processes exit. Kill those still running after `seconds`."""
    for one in processes:
        os.close(one.lifeline)
    patience = time.monotonic() + seconds
    for one in processes:
        try:
            one.process.wait(max(0.0, patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def tail_of(log: Path) -> list[str]:
    """The last non-empty lines of the log."""
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return [line[:300] for line in lines[-TAIL_LINES:]]
    return []
