"""The kinds of worker by the name that `run.worker` gives them: a package each, with a module `kind`.

A kind offers `warm_up`, what a process does before it has a task; `job`, what it does for a spec; and `replica`, what
each rank of several holds. Modules are imported when their kind is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from workers.contract import Result, WorkerSpec

if TYPE_CHECKING:
    from workers.rank_group.replica import Replica
    from workers.runtime import Attempt
    from workers.sandbox import Sandbox


class WorkerKind(Protocol):
    """A module `workers.<name>.kind`."""

    def warm_up(self) -> Sandbox | None:
        """Start the zygotes of a sandbox, if the kind runs programs, then import what takes long.

        The zygotes come first: they must not hold a copy of torch.
        """

    def job(self, spec: WorkerSpec, warmed: Sandbox | None) -> Callable[[Attempt], Result]:
        """What to do for `spec`. warmed: what `warm_up` returned."""

    def replica(self) -> type[Replica]:
        """What each rank holds."""


def worker_kind_named(name: str) -> WorkerKind:
    """name: `run.worker` of a profile."""
    return cast(WorkerKind, import_module(f"workers.{name}.kind"))
