"""What went wrong, what was kept, and the next command to type: the one error that a person may see."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the orchestrator and of its workers; docs/operations.md holds the table for people."""

    OK = 0
    USAGE = 2
    """Orchestrator: wrong command line."""
    SPEC = 64
    """Worker: bad spec.json."""
    VERSION = 65
    """Store or contract newer than this program."""
    INPUT = 66
    """Profile invalid; model or data missing, torn, or not the one that the run began with; a package not installed."""
    LOCKED = 69
    """Orchestrator: another master holds the run."""
    INTERNAL = 70
    """Worker: a bug of ours, traceback in its log. Orchestrator: crash loop, the head is named."""
    CUDA_OOM = 71
    """Worker: CUDA out of memory, and nothing is left to halve. Orchestrator: the card is too small for the profile."""
    GPU = 72
    """No usable GPU, or the one in use was lost."""
    DISK = 73
    """Disk full, read-only or failing."""
    STORE = 74
    """Orchestrator: store or every checkpoint damaged. Worker: the master is gone (lifeline closed)."""
    ABORTED = 75
    """Stopped at once on request: second Ctrl+C, or `abort` to a worker."""
    NOT_FINITE = 76
    """Worker: log-probs, loss or gradients were NaN or infinite three times in a row."""
    PERMISSION = 77
    """Permission denied, or a required sandbox layer is missing."""
    STAGNANT = 78
    """Orchestrator: no more progress or no more data, and the profile says stop. A result, not a fault."""

    RANK = 79
    """Worker: the process of one of its other GPUs was lost, and with it the attempt."""

    MISMATCH = 80
    """The rollout engine's log-probs are far from the trainer's under the same weights."""


class LonghaulError(Exception):
    """A failure that a person can act on.

    what: one sentence with the numbers in it. kept: what is still there. next_command: what to type.
    Raised anywhere; only `cli.main` and `workers.__main__` catch it, print `render()` and exit with `exit_code`.
    """

    def __init__(self, what: str, *, kept: str, next_command: str, exit_code: ExitCode) -> None:
        super().__init__(what)
        self.what = what
        self.kept = kept
        self.next_command = next_command
        self.exit_code = exit_code

    def render(self) -> str:
        """The three lines that are shown."""
        return f"error: {self.what}\nkept:  {self.kept}\nnext:  {self.next_command}"
