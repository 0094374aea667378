"""Defines self-play as a kind of worker (`workers.kinds`): its imports, its jobs and the replica of each rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from profiles.errors import LonghaulError
from profiles.schema import Sandbox as SandboxKnobs
from workers.contract import Result, WorkerSpec
from workers.environment import set_environment
from workers.sandbox import Sandbox
from workers.sandbox.limits import limits_of

if TYPE_CHECKING:
    from workers.rank_group.replica import Replica
    from workers.runtime import Attempt


def warm_up() -> Sandbox | None:
    """Start sandbox zygotes with the default limits, then run the slow imports. Needs no profile and no GPU.

    Returns None if this machine does not support the default limits. The profile's own limits are checked later.
    """
    set_environment()
    knobs = SandboxKnobs()
    sandbox: Sandbox | None = None
    with suppress(LonghaulError):
        sandbox = Sandbox(limits_of(knobs), knobs.jobs)
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import workers.azr.trainer  # noqa: F401
    from workers.early_imports import import_early

    import_early()

    return sandbox


def job(spec: WorkerSpec, warmed: Sandbox | None) -> Callable[[Attempt], Result]:
    """The job for `spec`. Uses the warmed-up sandbox if the profile has the default limits, else starts its own."""
    set_environment()
    from workers.azr.trainer import AzrTrainer
    from workers.cycle import train, validate
    from workers.suites.validation import suites_of

    def work(attempt: Attempt, sandbox: Sandbox) -> Result:
        if spec.role == "validate":
            return validate.validate(attempt, suites_of(attempt, sandbox))
        trainer = AzrTrainer(attempt, sandbox)
        with trainer.rank_group:
            return train.train(attempt, trainer)

    def run(attempt: Attempt) -> Result:
        knobs = spec.profile.sandbox
        if warmed is not None and knobs == SandboxKnobs():
            return work(attempt, warmed)
        with Sandbox(limits_of(knobs), knobs.jobs) as sandbox:
            return work(attempt, sandbox)

    return run


def replica() -> type[Replica]:
    """The replica class of each rank."""
    from workers.azr.replica import AzrReplica

    return AzrReplica
