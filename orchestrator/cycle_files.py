"""Removes the files of old cycles, so that a run of years has as many directory entries as one of days.

What they say is in the store by then, and in both of its back-ups, from which `recover` begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from state import durable
from state.layout import RunDir


def old_cycles(there: Collection[int], backed_up: Sequence[int], keep: int) -> list[int]:
    """The cycles whose files may go, oldest first. (pure)

    there: cycles with files. backed_up: the newest cycle in each back-up of the store. keep: how many of the newest
    stay, beyond what all back-ups hold; 0: all.
    """
    if not keep or len(backed_up) < 2:
        return []
    return sorted(cycle for cycle in there if cycle <= min(backed_up) - keep)


def remove_old_cycles(run: RunDir, keep: int) -> None:
    """Remove them; a cycle whose rollouts or evidence were kept stays. Safe to repeat after a kill.

    Raises LonghaulError (DISK, PERMISSION).
    """
    there = {int(path.name): path for path in run.cycles.iterdir() if path.name.isdigit()}
    backed_up = [int(path.stem.removeprefix("cycle-")) for path in run.backups.glob("cycle-*.db")]
    for cycle in old_cycles(there, backed_up, keep):
        path = there[cycle]
        if not (path / "rollouts").exists() and not any(path.glob("*/evidence")):
            durable.remove_tree(path, run.cycles)
