"""What one step of self-play leaves on disk: rollouts with their rewards, the tasks found, what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from workers.cycle.cursor import Place
from workers.tasks.entry import Entry
from workers.tasks.items import Role, Task


class Row(Struct, frozen=True, kw_only=True):
    """One rollout. It is trained on unless `reward` is None: then no fair judgement of it was possible."""

    task: Task
    role: Role
    group: int
    """Rollouts of one prompt share the number, within a task and role."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each completion token, as the rollout engine reported them. Empty unless all are finite; then no `reward`."""
    finish_reason: str
    reward: float | None
    is_correct: bool = False
    """A right answer; a valid new task."""
    is_well_formed: bool = True
    is_worked: bool = False


class Collected(Struct, frozen=True, kw_only=True):
    """All of a step before its update."""

    rows: list[Row]
    found: list[Entry]
    """New valid tasks, to be stored in this order."""
    retired: list[str] = []
    """Keys of stored tasks whose program gave another value this time."""
    metrics: dict[str, float] = {}
    place: Place | None = None
    """Where the finite source is read on, where there is one."""

    def records(self) -> list[dict[str, Any]]:
        """JSON records, one a line of the rollout file."""
        rest = msgspec.to_builtins(self)
        rows = rest.pop("rows")
        return [*rows, rest]

    @staticmethod
    def of(records: Sequence[dict[str, Any]]) -> Collected:
        *rows, rest = records
        return msgspec.convert({**rest, "rows": rows}, Collected)
