"""States of runs, cycles and attempts, and the edges between them; an edge that is not here cannot happen. (pure)"""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    """Asked to stop; resumes by `run`."""
    FINISHED = "finished"
    """All cycles done, or the time is over."""
    STAGNANT = "stagnant"
    """No more progress or no more data, and the profile says stop."""
    FAILED = "failed"
    """Crash loop; resumes by `run` once the cause is gone."""


UNFINISHED = frozenset({RunState.RUNNING, RunState.STOPPED, RunState.FAILED})


class CycleState(StrEnum):
    PLANNED = "planned"
    TRAINING = "training"
    TRAINED = "trained"
    """Its last step is in a committed checkpoint."""
    VALIDATING = "validating"
    VALIDATED = "validated"
    COMMITTED = "committed"
    BLOCKED = "blocked"
    """Given up by the crash-loop rule; a later `run` tries it again."""


CYCLE_EDGES: dict[CycleState, frozenset[CycleState]] = {
    CycleState.PLANNED: frozenset({CycleState.TRAINING}),
    CycleState.TRAINING: frozenset({CycleState.TRAINED, CycleState.BLOCKED}),
    CycleState.TRAINED: frozenset({CycleState.VALIDATING, CycleState.COMMITTED, CycleState.TRAINING}),
    CycleState.VALIDATING: frozenset({CycleState.VALIDATED, CycleState.BLOCKED, CycleState.TRAINING}),
    CycleState.VALIDATED: frozenset({CycleState.COMMITTED, CycleState.TRAINING}),
    CycleState.COMMITTED: frozenset({CycleState.TRAINING}),
    CycleState.BLOCKED: frozenset({CycleState.TRAINING, CycleState.VALIDATING}),
}
"""Back to TRAINING from later states: only when recovery walked the head back into the cycle."""


class AttemptState(StrEnum):
    PLANNED = "planned"
    STARTING = "starting"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    STOPPING = "stopping"
    HUNG = "hung"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """Found open at start-up, and its process is not there."""


FINAL = frozenset({AttemptState.SUCCEEDED, AttemptState.STOPPED, AttemptState.FAILED, AttemptState.LOST})

_A = AttemptState
ATTEMPT_EDGES: dict[AttemptState, frozenset[AttemptState]] = {
    # STARTING and all until the next FULL commit may be lost with the power, when files already say how it ended.
    _A.PLANNED: frozenset({_A.STARTING, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.STARTING: frozenset({_A.RUNNING, _A.STOPPING, _A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.RUNNING: frozenset({_A.CHECKPOINTING, _A.STOPPING, _A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.CHECKPOINTING: frozenset({_A.RUNNING, _A.STOPPING, _A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.STOPPING: frozenset({_A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    # It may have done its work and hung on the way out: result and checkpoint count, not how it ended.
    _A.HUNG: frozenset({_A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.SUCCEEDED: frozenset(),
    _A.STOPPED: frozenset(),
    _A.FAILED: frozenset(),
    _A.LOST: frozenset(),
}


class WrongTransition(Exception):
    """A bug of ours: a state was left by an edge that is not in the table."""


def check_cycle(old: CycleState, new: CycleState) -> None:
    """Raises WrongTransition unless old -> new is in CYCLE_EDGES."""
    if new not in CYCLE_EDGES[old]:
        raise WrongTransition(f"cycle: {old} -> {new}")


def check_attempt(old: AttemptState, new: AttemptState) -> None:
    """Raises WrongTransition unless old -> new is in ATTEMPT_EDGES."""
    if new not in ATTEMPT_EDGES[old]:
        raise WrongTransition(f"attempt: {old} -> {new}")
