"""Declares each kind of event of a run once: name, fields, meaning. (pure)

Workers emit them through `workers.runtime.Attempt.event`; the store and the displays read them by these names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class EventKind:
    """fields: the required keys of the event's data. is_open: further keys are allowed."""

    name: str
    meaning: str
    fields: tuple[str, ...] = ()
    is_open: bool = False

    def check(self, given: Collection[str]) -> None:
        """Raises ValueError if the data's fields differ from the declared ones."""
        missing, more = set(self.fields) - set(given), set(given) - set(self.fields)
        if missing or (more and not self.is_open):
            raise ValueError(
                f"an event {self.name!r} has the fields {sorted(self.fields)}: "
                f"{sorted(missing)} are missing, {[] if self.is_open else sorted(more)} are unknown"
            )


STARTED = EventKind("started", "a worker begins; versions of its libraries", ("versions",))
RESTARTED = EventKind(
    "restarted", "the scheduler started the job of an attempt anew; steps after this one are done again", ("restart",)
)
SANDBOX = EventKind("sandbox", "what protects the machine from programs that the model writes", ("layers",))
PROBLEMS = EventKind("problems", "the problems that a run trains on, and their digest", ("text", "digest"))
IMPORT = EventKind("import", "the tasks that a run begins with, and the report of their check", ("text",), is_open=True)
PATH = EventKind(
    "path", "the implementation that computes the model, compared with plain transformers", ("text",), is_open=True
)
MEMORY = EventKind(
    "memory", "measured and expected memory of the largest shapes", ("expected_peak_bytes",), is_open=True
)
STEP = EventKind("step", "metrics of a finished step (profiles/metrics.py)", is_open=True)
EXAMPLES = EventKind("examples", "new valid tasks", ("tasks",))
CHECKPOINT = EventKind("checkpoint", "a checkpoint is durable", ("path", "checkpoint_id", "digest"))
VALIDATION = EventKind(
    "validation",
    "scores of a suite, the seconds taken, and its number of problems",
    ("suite", "metrics", "seconds", "available"),
)
RESEED = EventKind("reseed", "tasks kept and dropped by a reseed", ("kept", "dropped"))
WARNING = EventKind("warning", "something the user should know", ("text",))
OOM_RETRY = EventKind(
    "oom_retry", "the GPU ran out of memory; the step is repeated", ("text", "phase", "shrinks", "error")
)
NOT_FINITE = EventKind("not_finite", "a step with NaN or infinite values, and how many in a row", ("in_row",))
EXHAUSTED = EventKind("exhausted", "the finite source of problems or tasks was used up", ("text",))
DONE = EventKind("done", "the attempt ended, and how", ("outcome", "exit_code"))

BY_WORKERS = (
    STARTED,
    RESTARTED,
    SANDBOX,
    PROBLEMS,
    IMPORT,
    PATH,
    MEMORY,
    STEP,
    EXAMPLES,
    CHECKPOINT,
    VALIDATION,
    RESEED,
    WARNING,
    OOM_RETRY,
    NOT_FINITE,
    EXHAUSTED,
    DONE,
)
"""Kinds allowed in `events.jsonl`."""

UNPARSED = EventKind("unparsed", "an invalid line of `events.jsonl`", ("text", "line"))
CONFLICT = EventKind("conflict", "an event that repeats with different data; the first is kept", ("text", "line"))
MASTER = EventKind("master", "a message from the master; shown, never stored", ("text",))

BY_MASTER = (UNPARSED, CONFLICT, MASTER)
"""Kinds the master adds."""


def names(*kinds: EventKind) -> frozenset[str]:
    return frozenset(kind.name for kind in kinds)
