"""verl as a kind of worker: our process holds the attempt, verl's processes hold the GPUs (`workers.kinds`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from workers.contract import Result, WorkerSpec
from workers.environment import set_environment
from workers.sandbox import Sandbox

if TYPE_CHECKING:
    from workers.runtime import Attempt


def warm_up() -> None:
    """Nothing of verl: its job is made of processes of their own, which nobody can start before the head is known."""
    set_environment()
    import workers.verl.train  # noqa: F401


def job(spec: WorkerSpec, warmed: Sandbox | None = None) -> Callable[[Attempt], Result]:
    """What to do for `spec`."""
    set_environment()
    from workers.verl import train, validate

    return validate.validate if spec.role == "validate" else train.train


def replica() -> NoReturn:
    raise NotImplementedError("verl's processes hold the weights, not our ranks")
