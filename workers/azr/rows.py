"""What one step of self-play writes to disk: rollouts with their rewards, the tasks found and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from workers.cycle.cursor import Place
from workers.tasks.entry import Entry
from workers.tasks.items import Role, Task


class Row(Struct, frozen=True, kw_only=True):
    """One rollout. Training skips it if `reward` is None, which means that it could not be judged fairly."""

    task: Task
    role: Role
    group: int
    """Group number. Within a task and role, rollouts of one prompt share it."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """One per completion token, from the rollout engine. If any is not finite: empty, and `reward` is None."""
    finish_reason: str
    reward: float | None
    own_rewards: dict[str, float] = {}
    """User-defined parts of `reward`, by name."""
    is_correct: bool = False
    """Solver: the answer is right. Proposer: the task is valid and new."""
    is_well_formed: bool = True
    is_worked: bool = False


class Collected(Struct, frozen=True, kw_only=True):
    """Everything that a step collects before its update."""

    rows: list[Row]
    found: list[Entry]
    """New valid tasks, to be stored in this order."""
    retired: list[str] = []
    """Keys of stored tasks whose program returned a different value this time."""
    metrics: dict[str, float] = {}
    place: Place | None = None
    """The next position in the finite source, if there is one."""
    is_older: bool = False
    """Drawn beside the update before it (run.overlap), with the weights before that update."""

    def records(self) -> list[dict[str, Any]]:
        """JSON records, one per line of the rollout file."""
        rest = msgspec.to_builtins(self)
        rows = rest.pop("rows")
        return [*rows, rest]

    @staticmethod
    def of(records: Sequence[dict[str, Any]]) -> Collected:
        *rows, rest = records
        return msgspec.convert({**rest, "rows": rows}, Collected)
