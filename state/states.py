"""States of runs, cycles and attempts, and the allowed transitions between them. (pure)"""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    """Stopped on request; `run` resumes it."""
    FINISHED = "finished"
    """All cycles are done, or the time limit is reached."""
    STAGNANT = "stagnant"
    """No more progress or no more data, and the profile says to stop."""
    PAUSED = "paused"
    """Somebody paused it (a row of `requests`), or its disk is full: then it goes on by itself once there is room."""
    FAILED = "failed"
    """Crash loop; `run` resumes it once the cause is fixed."""


UNFINISHED = frozenset({RunState.RUNNING, RunState.STOPPED, RunState.PAUSED, RunState.FAILED})
UNDER_A_MASTER = frozenset({RunState.RUNNING, RunState.PAUSED})
"""Without a master, such a run was interrupted."""


class CycleState(StrEnum):
    PLANNED = "planned"
    TRAINING = "training"
    TRAINED = "trained"
    """A committed checkpoint holds its last step."""
    VALIDATING = "validating"
    VALIDATED = "validated"
    COMMITTED = "committed"
    BLOCKED = "blocked"
    """The crash-loop rule gave up; a later `run` tries again."""


CYCLE_EDGES: dict[CycleState, frozenset[CycleState]] = {
    CycleState.PLANNED: frozenset({CycleState.TRAINING}),
    CycleState.TRAINING: frozenset({CycleState.TRAINED, CycleState.BLOCKED}),
    CycleState.TRAINED: frozenset({CycleState.VALIDATING, CycleState.COMMITTED, CycleState.TRAINING}),
    CycleState.VALIDATING: frozenset({CycleState.VALIDATED, CycleState.BLOCKED, CycleState.TRAINING}),
    CycleState.VALIDATED: frozenset({CycleState.COMMITTED, CycleState.TRAINING}),
    CycleState.COMMITTED: frozenset({CycleState.TRAINING}),
    CycleState.BLOCKED: frozenset({CycleState.TRAINING, CycleState.VALIDATING}),
}
"""Later states return to TRAINING only when recovery walked the head back into the cycle."""


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
    """Found open at start-up, with its process gone."""


FINAL = frozenset({AttemptState.SUCCEEDED, AttemptState.STOPPED, AttemptState.FAILED, AttemptState.LOST})

_A = AttemptState
ATTEMPT_EDGES: dict[AttemptState, frozenset[AttemptState]] = {
    # A power cut can lose states from STARTING on until the next FULL commit, so PLANNED may lead to any final state.
    _A.PLANNED: frozenset({_A.STARTING, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.STARTING: frozenset({_A.RUNNING, _A.STOPPING, _A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.RUNNING: frozenset({_A.CHECKPOINTING, _A.STOPPING, _A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.CHECKPOINTING: frozenset({_A.RUNNING, _A.STOPPING, _A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.STOPPING: frozenset({_A.HUNG, _A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    # A worker may finish its work and hang on exit: its result and checkpoint still count.
    _A.HUNG: frozenset({_A.SUCCEEDED, _A.STOPPED, _A.FAILED, _A.LOST}),
    _A.SUCCEEDED: frozenset(),
    _A.STOPPED: frozenset(),
    _A.FAILED: frozenset(),
    _A.LOST: frozenset(),
}


class WrongTransition(Exception):
    """A transition that the table does not allow: a bug."""


def check_cycle(old: CycleState, new: CycleState) -> None:
    """Raises WrongTransition unless old -> new is in CYCLE_EDGES."""
    if new not in CYCLE_EDGES[old]:
        raise WrongTransition(f"cycle: {old} -> {new}")


def check_attempt(old: AttemptState, new: AttemptState) -> None:
    """Raises WrongTransition unless old -> new is in ATTEMPT_EDGES."""
    if new not in ATTEMPT_EDGES[old]:
        raise WrongTransition(f"attempt: {old} -> {new}")
