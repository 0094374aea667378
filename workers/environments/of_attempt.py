"""The environment of a run, with the process that it lives in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workers.runtime import Attempt

if TYPE_CHECKING:
    from workers.environments.runner import EnvironmentRunner


@contextmanager
def environment_of(attempt: Attempt) -> Iterator[EnvironmentRunner | None]:
    """Inside, the environment that the profile names; None if it names none. Raises LonghaulError (INPUT) for one that
    cannot be imported or made."""
    environment, limits = attempt.profile.grpo.environment, attempt.profile.grpo.reward
    if not environment.name:
        yield None
        return
    from workers.environments.runner import EnvironmentRunner

    with EnvironmentRunner(environment.name, environment.options, limits, attempt.dir.path) as runner:
        yield runner
