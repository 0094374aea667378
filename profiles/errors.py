"""The one kind of error that users see: what went wrong, what was kept, and the next command to type."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the orchestrator and its workers; docs/operations.md has the table for users."""

    OK = 0
    USAGE = 2
    """Orchestrator: wrong command line."""
    SPEC = 64
    """Worker: bad spec.json."""
    VERSION = 65
    """Store or contract newer than this program."""
    INPUT = 66
    """Invalid profile; model or data missing, torn or changed since the run began; missing package."""
    LOCKED = 69
    """Orchestrator: another master holds the run."""
    INTERNAL = 70
    """Worker: a bug, with the traceback in its log. Orchestrator: a crash loop."""
    CUDA_OOM = 71
    """Worker: CUDA out of memory, and nothing is left to halve. Orchestrator: the card, or the host, is too small."""
    GPU = 72
    """No usable GPU, or the GPU in use was lost."""
    DISK = 73
    """Disk full, read-only or failing."""
    STORE = 74
    """Orchestrator: the store or every checkpoint is damaged. Worker: the master is gone (lifeline closed)."""
    ABORTED = 75
    """Stopped at once on request: second Ctrl+C, or `abort` to a worker."""
    NOT_FINITE = 76
    """Worker: log-probs, loss or gradients were NaN or infinite three times in a row."""
    PERMISSION = 77
    """Permission denied, or a required sandbox layer is missing."""
    STAGNANT = 78
    """Orchestrator: no more progress or data, and the profile says to stop. A result, not an error."""

    RANK = 79
    """Worker: the process of another rank was lost, which ends the attempt."""

    MISMATCH = 80
    """The rollout engine's log-probs differ too much from the trainer's under the same weights."""

    NODE = 81
    """Worker: a node of its job failed. Orchestrator: too many nodes have failed to go on."""
    SYNC = 82
    """Worker: a rollout engine did not get the weights that the trainer sent."""
    ENGINE = 83
    """Worker: the external engine ended by itself, and its log names no better known cause."""
    REQUEUES = 84
    """Worker: its job was put back into the queue as often as the profile allows, with no orchestrator there."""
    CLUSTER = 85
    """The scheduler refuses or does not answer, or somebody cancelled the job."""
    CODE_SERVER = 86
    """Worker: the code server is not there, or too many of its answers were no verdicts."""
    REWARD = 87
    """Worker: a part of the reward could not be computed, and the profile says to stop."""


class LonghaulError(Exception):
    """A failure that the user can act on.

    what: one sentence, with the numbers. kept: what is preserved. next_command: what to type. Any code may raise it;
    `cli.main` and `workers.__main__` print `render()` and exit with `exit_code`.
    """

    def __init__(self, what: str, *, kept: str, next_command: str, exit_code: ExitCode) -> None:
        super().__init__(what)
        self.what = what
        self.kept = kept
        self.next_command = next_command
        self.exit_code = exit_code

    def render(self) -> str:
        """The three lines of the message."""
        return f"error: {self.what}\nkept:  {self.kept}\nnext:  {self.next_command}"
