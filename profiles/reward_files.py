"""Finds the file of a reward function or an environment, `FILE.py:NAME` or `MODULE:NAME`, and hashes it. Imports no
code of the user."""

from __future__ import annotations

import hashlib
from importlib.machinery import PathFinder
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError


def hash_of(name: str, cwd: Path) -> str:
    """sha256 in hex of the file that defines the function; of that file alone, not of what it imports.

    cwd: relative files are meant from here. Raises LonghaulError (INPUT) for a name or file that is not there.
    """
    file = file_of(name, cwd)
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise refusal(name, f"{file} cannot be read: {error.strerror or error}", f"ls -l {file}") from error


def file_of(name: str, cwd: Path) -> Path:
    """The file that defines the function, absolute. A module is searched where Python would, and not imported.

    Raises LonghaulError (INPUT).
    """
    place, colon, function = name.rpartition(":")
    if not (colon and place and function.isidentifier()):
        raise refusal(name, "a reward function is FILE.py:NAME or MODULE:NAME", _CORRECT)
    return file_at(place, name, cwd)


def file_at(place: str, name: str, cwd: Path) -> Path:
    """The file of a FILE.py or MODULE; name: what the user typed. Raises LonghaulError (INPUT)."""
    if is_file(place):
        file = (cwd / Path(place).expanduser()).resolve()
        if not file.is_file():
            raise refusal(
                name, f"there is no file {file}", f"ls {_nearest(file)}   then correct the name in the profile"
            )
        return file
    return _file_of_module(name, place)


def is_file(place: str) -> bool:
    """Whether the part before the colon is a file, and not a module."""
    return place.endswith(".py") or "/" in place


def _file_of_module(name: str, module: str) -> Path:
    """Looks in each package in turn: `importlib.util.find_spec` would import the packages above the module."""
    function = name.rpartition(":")[2] if ":" in name else ""
    path: list[str] | None = None
    spec = None
    for at, _ in enumerate(parts := module.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: at + 1]), path)
        if spec is None:
            break
        path = list(spec.submodule_search_locations or [])
    if spec is None or not spec.origin:
        file = f"{parts[-1]}.py:{function}" if function else f"{parts[-1]}.py"
        way = f"export PYTHONPATH=FOLDER_OF_{parts[0].upper()}   (absolute), or name the file: {file}"
        raise refusal(name, f"Python finds no module {module}", way)
    return Path(spec.origin).resolve()


_CORRECT = "the same command with, for example, --set 'grpo.rewards=[\"my_rewards.py:accuracy\"]'"


def refusal(name: str, why: str, next_command: str) -> LonghaulError:
    return LonghaulError(
        f"{name}: {why}",
        kept="everything; nothing was started",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )


def _nearest(file: Path) -> Path:
    """The nearest folder above the file that there is."""
    return next(folder for folder in file.parents if folder.is_dir())
