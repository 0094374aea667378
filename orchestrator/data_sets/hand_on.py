"""After the last cycle, verifies all tasks of the run again and writes them as input for a next run."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.copies import owner_of
from orchestrator.data_sets.worker import data_worker
from orchestrator.display.wording import count
from profiles.errors import LonghaulError
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state.history import History
from state.layout import RunDir
from state.states import RunState
from workers.line_contract import Consolidated, DataSpec, Said, Unchanged

LAST_STATES = frozenset({RunState.FINISHED, RunState.STAGNANT})
"""Excludes stopped and failed runs, which can still be resumed."""


def is_due(history: History, profile: Profile) -> bool:
    """Whether the run has finished and should write its tasks for a next run. (pure)"""
    hands_on = worker_kind_of(profile).hands_on and profile.data.hand_on
    return hands_on and history.state in LAST_STATES and history.head is not None


def hand_on(
    run: RunDir, history: History, profile: Profile, say: Callable[[str], None], stop_asked: Callable[[], bool]
) -> str:
    """Write `data/next.jsonl` unless it exists for this head. Returns a line for the summary, empty without a file.

    A failure does not stop the run, because a next run can also start from the run directory.
    """
    assert history.head is not None
    root = str(run.root.resolve())
    spec = DataSpec(
        action="merge",
        profile=profile,
        sources=(root,),
        names=(run.name,),
        into=str(run.next_input),
        inputs=history.head.checkpoint_id,
    )
    tasks = 0
    say("verifying every task again for data/next.jsonl; Ctrl+C skips this")
    try:
        with data_worker(spec, owner_of(run, history.run_id)) as worker:
            for message in worker.hear():
                if stop_asked():
                    say("data/next.jsonl was skipped, as requested")
                    return ""
                tasks = tasks_of(message) or tasks
    except LonghaulError as error:
        say(f"data/next.jsonl could not be written: {error.what}")
        return ""
    return f"{run.next_input}: {count(tasks)} tasks for a next run" if tasks else ""


def tasks_of(message: Said) -> int:
    """Number of tasks in the finished data set; 0 for other messages. (pure)"""
    match message:
        case Consolidated(report=report):
            return int(report["after"])
        case Unchanged(tasks=tasks):
            return tasks
    return 0
