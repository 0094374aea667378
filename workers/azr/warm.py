"""Warming a worker for self-play, and the jobs it can do: the one module of this package that knows the runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from profiles.errors import LonghaulError
from profiles.schema import Sandbox as SandboxKnobs
from workers.contract import BY_BUS, Result, WorkerSpec
from workers.sandbox import Limits, Sandbox

if TYPE_CHECKING:
    from workers.runtime import Attempt


ENVIRONMENT = {
    # Nothing may be downloaded by a worker, nor waited for.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_DEVICE_ORDER": BY_BUS,
    # How long tensor threads wait awake. Awake for ever they take the cores from those they wait for, and a step is up
    # to ten times slower as soon as another program wants a core; asleep at once they lose a third of a quiet step.
    "GOMP_SPINCOUNT": "1000",
}


def limits_of(knobs: SandboxKnobs) -> Limits:
    return Limits(
        cpu_s=knobs.cpu_s, wall_s=knobs.wall_s, memory_mb=knobs.memory_mb, modules=knobs.modules,
        require=knobs.require, allow_weak=knobs.allow_weak,
    )  # fmt: skip


def set_environment() -> None:
    """What tensor libraries read once, when they are loaded."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def start() -> Sandbox | None:
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
    from workers import train, validate
    from workers.azr.evaluation import suites_of
    from workers.azr.trainer import AzrTrainer

    def work(attempt: Attempt, sandbox: Sandbox) -> Result:
        if spec.role == "validate":
            return validate.validate(attempt, suites_of(attempt, sandbox))
        trainer = AzrTrainer(attempt, sandbox)
        with trainer.crew:
            return train.train(attempt, trainer)

    def run(attempt: Attempt) -> Result:
        knobs = spec.profile.sandbox
        if warmed is not None and knobs == SandboxKnobs():
            return work(attempt, warmed)
        with Sandbox(limits_of(knobs), knobs.jobs) as sandbox:
            return work(attempt, sandbox)

    return run
