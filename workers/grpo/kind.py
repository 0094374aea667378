"""GRPO as a kind of worker: its imports, its jobs, and what each rank holds (`workers.kinds`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from workers.contract import Result, WorkerSpec
from workers.environment import set_environment
from workers.sandbox import Sandbox

if TYPE_CHECKING:
    from workers.rank_group.replica import Replica
    from workers.runtime import Attempt


def warm_up() -> None:
    """Do the imports that take seconds. GRPO runs no model-written program, so it needs no sandbox."""
    set_environment()
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import workers.grpo.trainer  # noqa: F401
    from workers.early_imports import import_early

    import_early()


def job(spec: WorkerSpec, warmed: Sandbox | None = None) -> Callable[[Attempt], Result]:
    """The function that carries out `spec`."""
    set_environment()
    from workers.cycle import train, validate
    from workers.environments.of_profile import environment_of
    from workers.grpo.trainer import GrpoTrainer
    from workers.rewards.slow import slow_rewards
    from workers.suites.validation import suites_of

    if spec.role == "validate":
        return lambda attempt: validate.validate(attempt, suites_of(attempt, None))

    def run(attempt: Attempt) -> Result:
        with (
            slow_rewards(attempt.profile, attempt.dir.path, lambda: attempt.drawn_step) as slow,
            environment_of(attempt.profile, attempt.dir.path) as environment,
        ):
            trainer = GrpoTrainer(attempt, slow_rewards=slow, environment=environment)
            with trainer.rank_group:
                return train.train(attempt, trainer)

    return run


def replica() -> type[Replica]:
    """What each rank holds."""
    from workers.grpo.replica import GrpoReplica

    return GrpoReplica
