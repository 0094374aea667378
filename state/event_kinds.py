"""Kinds of events of a run, each declared once: its name, its fields, what it says. (pure)

A worker emits them through `workers.runtime.Attempt.event`; the store and the screens read them by these names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class EventKind:
    """fields: of the event's data, all of them. is_open: there are more, as `meaning` says."""

    name: str
    meaning: str
    fields: tuple[str, ...] = ()
    is_open: bool = False

    def check(self, given: Collection[str]) -> None:
        """Raises ValueError for data whose fields are not those that are declared."""
        missing, more = set(self.fields) - set(given), set(given) - set(self.fields)
        if missing or (more and not self.is_open):
            raise ValueError(
                f"an event {self.name!r} has the fields {sorted(self.fields)}: "
                f"{sorted(missing)} are missing, {[] if self.is_open else sorted(more)} are unknown"
            )


STARTED = EventKind("started", "a worker begins; versions of its libraries", ("versions",))
SANDBOX = EventKind("sandbox", "what protects the machine from programs that the model writes", ("layers",))
PROBLEMS = EventKind("problems", "the problems that a run trains on, and their digest", ("text", "digest"))
IMPORT = EventKind("import", "the tasks that a run begins with, and the report of their check", ("text",), is_open=True)
PATH = EventKind(
    "path", "what computes the model, and how it compares with plain transformers", ("text",), is_open=True
)
MEMORY = EventKind(
    "memory", "what the largest shapes took, and what was expected", ("expected_peak_bytes",), is_open=True
)
STEP = EventKind("step", "metrics of a finished step (profiles/metrics.py)", is_open=True)
EXAMPLES = EventKind("examples", "new valid tasks", ("tasks",))
CHECKPOINT = EventKind("checkpoint", "a checkpoint is durable", ("path", "checkpoint_id", "digest"))
VALIDATION = EventKind(
    "validation",
    "scores of a suite, the seconds they took, and the problems that it has",
    ("suite", "metrics", "seconds", "available"),
)
RESEED = EventKind("reseed", "tasks that a reseed kept and dropped", ("kept", "dropped"))
WARNING = EventKind("warning", "what a person should know", ("text",))
OOM_RETRY = EventKind(
    "oom_retry", "the GPU ran out of memory, and the step is done again", ("text", "phase", "shrinks", "error")
)
NOT_FINITE = EventKind("not_finite", "a step with numbers that are not finite, how many in a row", ("in_row",))
EXHAUSTED = EventKind("exhausted", "the finite source of problems or tasks was used up", ("text",))
DONE = EventKind("done", "the attempt ends, and how", ("outcome", "exit_code"))

BY_WORKERS = (
    STARTED,
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
"""What may stand in `events.jsonl`."""

UNPARSED = EventKind("unparsed", "a line of `events.jsonl` that is no event", ("text", "line"))
CONFLICT = EventKind("conflict", "an event that came twice and differs; the first is kept", ("text", "line"))
MASTER = EventKind("master", "what the master tells a person; shown, and never stored", ("text",))

BY_MASTER = (UNPARSED, CONFLICT, MASTER)
"""What the master adds."""


def names(*kinds: EventKind) -> frozenset[str]:
    return frozenset(kind.name for kind in kinds)
