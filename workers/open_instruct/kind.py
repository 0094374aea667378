"""open-instruct as a kind of worker: our process holds the attempt, its processes hold the GPUs (`workers.kinds`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from workers.contract import Result, WorkerSpec
from workers.sandbox import Sandbox

if TYPE_CHECKING:
    from workers.runtime import Attempt


def warm_up() -> None:
    """Nothing of open-instruct: its job is made of processes of their own, which need the head."""
    import workers.open_instruct.train  # noqa: F401


def job(spec: WorkerSpec, warmed: Sandbox | None = None) -> Callable[[Attempt], Result]:
    """What to do for `spec`, which is never a validation (`profiles.worker_kinds`)."""
    from workers.open_instruct import train

    return train.train


def replica() -> NoReturn:
    raise NotImplementedError("open-instruct's processes hold the weights, not our ranks")
