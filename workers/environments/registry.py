"""Finds the class that a profile names: a built-in environment, one of the library verifiers, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.rewards import ENVIRONMENTS, LIBRARY

SHIPPED = {
    "guess": "workers.environments.examples.guess:Guess",
    "calculator": "workers.environments.examples.calculator:Calculator",
}
assert tuple(SHIPPED) == ENVIRONMENTS
OF_LIBRARY = "workers.environments.verifiers_library:VerifiersEnvironment"


def class_of(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """MODULE:NAME or FILE.py:NAME, and the keyword arguments of the class."""
    if name.startswith(LIBRARY):
        return OF_LIBRARY, {"id": name.removeprefix(LIBRARY), **options}
    return SHIPPED.get(name, name), dict(options)
