"""Self-play as a kind of worker: its imports, its jobs, and what each rank holds (`workers.kinds`)."""

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
    """Zygotes with the default limits, then the imports that take seconds. No profile is known yet, no GPU is used.

    None where the default limits cannot be had here: whether the profile's can is seen when it is known.
    """
    set_environment()
    knobs = SandboxKnobs()
    sandbox: Sandbox | None = None
    with suppress(LonghaulError):
        sandbox = Sandbox(limits_of(knobs), knobs.jobs)
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import workers.azr.trainer  # noqa: F401

    return sandbox


def job(spec: WorkerSpec, warmed: Sandbox | None) -> Callable[[Attempt], Result]:
    """What to do for `spec`. A sandbox with other limits than the profile's is replaced."""
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
    """What each rank holds."""
    from workers.azr.replica import AzrReplica

    return AzrReplica
