"""Warming a worker for GRPO, and the jobs it can do: the one module of this package that knows the runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workers.azr.warm import set_environment
from workers.contract import Result, WorkerSpec

if TYPE_CHECKING:
    from workers.runtime import Attempt


def start() -> None:
    """The imports that take seconds. No program of a model is ever run, so there is no sandbox."""
    set_environment()
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import workers.grpo.trainer  # noqa: F401


def job(spec: WorkerSpec) -> Callable[[Attempt], Result]:
    """What to do for `spec`."""
    set_environment()
    from workers import train, validate
    from workers.azr.evaluation import suites_of
    from workers.grpo.trainer import GrpoTrainer

    if spec.role == "validate":
        return lambda attempt: validate.validate(attempt, suites_of(attempt, None))

    def run(attempt: Attempt) -> Result:
        trainer = GrpoTrainer(attempt)
        with trainer.crew:
            return train.train(attempt, trainer)

    return run
