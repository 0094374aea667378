"""The card that a new job is set for: named, or found by the driver."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.machine import Machine, this_machine
from orchestrator.preflight import a_card_of
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB

CPU = "cpu"
AUTO = "auto"
CARDS = {"8gb": 8.0, "12gb": 12.0, "16gb": 16.0, "24gb": 24.0}
"""Name -> GB. Others are taken too, as in `40gb`."""
SMALLEST_GB = 1.0
LARGEST_GB = 1000.0


@dataclass(frozen=True)
class Hardware:
    """name: as in `--card`. machine: what the planner counts with."""

    name: str
    machine: Machine

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    @property
    def gigabytes(self) -> float:
        """Of the card; 0 for a CPU."""
        return self.machine.card.total_bytes / GIB if self.machine.card else 0.0


def hardware_of(name: str) -> Hardware:
    """name: `cpu`, `auto`, or a size. Raises LonghaulError (USAGE) for anything else."""
    wanted = name.strip().lower().replace(" ", "")
    if wanted in ("", AUTO):
        return found_here(this_machine())
    if wanted == CPU:
        return Hardware(CPU, Machine(()))
    try:
        size = CARDS.get(wanted) or float(wanted.removesuffix("gb"))
    except ValueError:
        size = 0.0
    if not SMALLEST_GB <= size <= LARGEST_GB:  # False for nan, too
        raise LonghaulError(
            f"--card is {', '.join(CARDS)}, {CPU} or {AUTO}, not {name!r}",
            kept="everything; nothing was written",
            next_command="the same command with --card 8gb",
            exit_code=ExitCode.USAGE,
        )
    return Hardware(f"{size:g}gb", a_card_of(size, has_vllm=False))


def found_here(machine: Machine) -> Hardware:
    """The first card of this machine, or its CPU where it has none or cannot tell. (pure)"""
    if machine.card is None:
        return Hardware(CPU, machine)
    return Hardware(f"{round(machine.card.total_bytes / GIB)}gb", machine)
