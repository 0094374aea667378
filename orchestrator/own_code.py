"""Code of the user's own that a profile names: where its files are, and their hashes, which become part of the profile.

So a run finds its functions from any working directory, and a function that has changed is shown when the run resumes.
Nothing of the code is imported here.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from profiles.rewards import LIBRARY, is_function, part_name
from profiles.schema import Profile

SHOWN = 12
"""Hexadecimal digits of a hash in the profile."""


def is_own(name: str) -> bool:
    """Whether the name is one of the user's own code."""
    return is_function(name) and not name.startswith(LIBRARY)


def with_own_code(profile: Profile, folder: Path) -> Profile:
    """The profile with absolute paths of files, and their hashes in `grpo.reward.files`.

    folder: what relative paths refer to. Raises LonghaulError (INPUT) for a file or module that is not there.
    """
    grpo, environment = profile.grpo, profile.grpo.environment
    functions = [name for name in (*grpo.rewards, environment.name) if is_own(name)]
    if not functions:
        return profile
    from profiles.reward_files import hash_of, is_file  # hashing is slow to import, and seldom needed

    def absolute(name: str) -> str:
        place, _, function = name.rpartition(":")
        return f"{(folder / Path(place).expanduser()).resolve()}:{function}" if is_file(place) else name

    rewards = tuple(absolute(name) if is_own(name) else name for name in grpo.rewards)
    if is_own(environment.name):
        environment = replace(environment, name=absolute(environment.name))
    files = tuple(f"{part_name(name)} {hash_of(name, folder)[:SHOWN]}" for name in functions)
    if (rewards, environment, files) == (grpo.rewards, grpo.environment, grpo.reward.files):
        return profile
    reward = replace(grpo.reward, files=files)
    return replace(profile, grpo=replace(grpo, rewards=rewards, environment=environment, reward=reward))
