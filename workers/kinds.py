"""Loads a kind of worker by its name in `run.worker`: each is a package with a module `kind`.

A kind provides `warm_up`, which a process runs before it has a task; `job`, the work for a spec; and `replica`, the
state of each rank. A kind's module is imported only when that kind is chosen.
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
        """Start the sandbox zygotes if the kind runs programs, then do the slow imports.

        The zygotes come first, because they must not hold a copy of torch.
        """

    def job(self, spec: WorkerSpec, warmed: Sandbox | None) -> Callable[[Attempt], Result]:
        """The work for `spec`. warmed: the return value of `warm_up`."""

    def replica(self) -> type[Replica]:
        """The class of the state that each rank holds."""


def worker_kind_named(name: str) -> WorkerKind:
    """Import a kind. name: `run.worker` of a profile."""
    return cast(WorkerKind, import_module(f"workers.{name}.kind"))
