"""Finds the class that a profile names: a built-in environment, one of the library verifiers, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from profiles.rewards import ENVIRONMENTS, LIBRARY

SHIPPED = {
    "guess": "workers.environments.examples.guess:Guess",
    "calculator": "workers.environments.examples.calculator:Calculator",
}
assert tuple(SHIPPED) == ENVIRONMENTS
OF_LIBRARY = "workers.environments.verifiers_library:VerifiersEnvironment"


def check_library(name: str) -> None:
    """Raises LonghaulError (INPUT) if the name is one of the library verifiers, and that is missing or too new."""
    if not name.startswith(LIBRARY):
        return
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        why = "the library verifiers is not installed"
    else:
        if tuple(map(int, found.split(".")[:2])) in ((0, 2), (0, 3)):
            return
        why = f"verifiers {found} is installed, and its environments of 0.2 and 0.3 are the ones that are known"
    raise LonghaulError(
        f"the environment {name}: {why}",
        kept="everything; nothing was started",
        next_command="pip install 'verifiers>=0.2,<0.4'   (or: pip install 'longhaul[verifiers]')",
        exit_code=ExitCode.INPUT,
    )


def class_of(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """MODULE:NAME or FILE.py:NAME, and the keyword arguments of the class."""
    if name.startswith(LIBRARY):
        return OF_LIBRARY, {"id": name.removeprefix(LIBRARY), **options}
    return SHIPPED.get(name, name), dict(options)
