"""The environment that a profile names, with the process that it lives in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from profiles.schema import Profile

if TYPE_CHECKING:
    from workers.environments.runner import EnvironmentRunner


@contextmanager
def environment_of(profile: Profile, folder: Path) -> Iterator[EnvironmentRunner | None]:
    """Inside, the environment of the profile; None if it names none.

    folder: for its log and failed calls. Raises LonghaulError (INPUT) for one that cannot be imported or made.
    """
    environment, limits = profile.grpo.environment, profile.grpo.reward
    if not environment.name:
        yield None
        return
    from workers.environments.runner import EnvironmentRunner

    with EnvironmentRunner(environment.name, environment.options, limits, folder) as runner:
        yield runner


def own_rows_of(profile: Profile) -> list[dict[str, Any]] | None:
    """The rows that the environment brings, if the profile names no data and an environment that has some. Raises
    LonghaulError (INPUT, REWARD)."""
    if profile.data.names or not profile.grpo.environment.name:
        return None
    with TemporaryDirectory(prefix="longhaul-rows-") as folder, environment_of(profile, Path(folder)) as runner:
        assert runner is not None
        return runner.rows()
