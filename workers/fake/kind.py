"""Defines the durability trainer as a kind of worker (`workers.kinds`). It has no slow imports and uses one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from workers.contract import Result, WorkerSpec
from workers.cycle import train, validate
from workers.fake.trainer import FakeTrainer, fake_suites

if TYPE_CHECKING:
    from workers.runtime import Attempt
    from workers.sandbox import Sandbox


def warm_up() -> None:
    """Nothing to import."""


def job(spec: WorkerSpec, warmed: Sandbox | None = None) -> Callable[[Attempt], Result]:
    """The job for `spec`."""
    if spec.role == "validate":
        return lambda attempt: validate.validate(attempt, fake_suites(attempt))
    return lambda attempt: train.train(attempt, FakeTrainer(attempt))


def replica() -> NoReturn:
    raise NotImplementedError("the fake trainer uses no GPU")
