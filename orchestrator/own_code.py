"""Code of the user's own that a profile names: where its files are, and their hashes, which become part of the profile.

So a run finds its functions from any working directory, and a function that has changed is shown when the run resumes.
Nothing of the code is imported here.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.rewards import is_function, part_name
from profiles.schema import Profile

SHOWN = 12
"""Hexadecimal digits of a hash in the profile."""


def with_own_code(profile: Profile, folder: Path) -> Profile:
    """The profile with absolute paths of files, and their hashes in `grpo.reward.files`.

    folder: what relative paths refer to. Raises LonghaulError (INPUT) for a file or module that is not there.
    """
    grpo = profile.grpo
    rewards = tuple(_absolute(name, folder) if is_function(name) else name for name in grpo.rewards)
    files = tuple(f"{part_name(name)} {_hash(_file_of(name))}" for name in rewards if is_function(name))
    if (rewards, files) == (grpo.rewards, grpo.reward.files):
        return profile
    return replace(profile, grpo=replace(grpo, rewards=rewards, reward=replace(grpo.reward, files=files)))


def _absolute(name: str, folder: Path) -> str:
    """FILE.py:NAME with an absolute path; MODULE:NAME as it is."""
    place, _, function = name.rpartition(":")
    return f"{(folder / Path(place).expanduser()).resolve()}:{function}" if place.endswith(".py") else name


def _file_of(name: str) -> Path:
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place)
    search: list[str] | None = None
    for depth, part in enumerate(parts := place.split(".")):
        found = PathFinder.find_spec(".".join(parts[: depth + 1]) if search is None else part, search)
        if found is None:
            raise _missing(name, f"there is no module {place}", f"pip install it, or PYTHONPATH=ITS-FOLDER and {AGAIN}")
        search = list(found.submodule_search_locations or ())
    assert found is not None
    if found.origin is None:
        raise _missing(name, f"{place} is a folder without an __init__.py", f"correct grpo.rewards, then {AGAIN}")
    return Path(found.origin)


AGAIN = "the same command"


def _hash(file: Path) -> str:
    import hashlib  # slow to import, and seldom needed

    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:SHOWN]
    except OSError as error:
        raise _missing(
            str(file), f"{file} cannot be read: {error.strerror}", f"ls -l {file.parent}, then {AGAIN}"
        ) from error


def _missing(name: str, what: str, next_command: str) -> LonghaulError:
    return LonghaulError(
        f"grpo.rewards names {name}, and {what}",
        kept="everything; nothing was started",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )
