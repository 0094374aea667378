"""Loads the user's functions, and tells the two forms apart by the names of their parameters.

Ours takes one rollout: f(problem, completion, facts). TRL's takes all of a problem: f(prompts, completions, **columns).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from workers.rewards.functions.protocol import Signature
from workers.user_code.errors import NotUsable
from workers.user_code.imports import imported

OURS = ("problem", "completion", "facts")
TRLS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def load(name: str, file: Path, modules: dict[str, ModuleType]) -> Callable[..., Any]:
    """Import the file once, and return the function. modules: those imported so far, by place. Raises NotUsable."""
    place, _, attribute = name.rpartition(":")
    if place not in modules:
        modules[place] = imported(place, file)
    found = getattr(modules[place], attribute, None)
    if found is None:
        there = ", ".join(one for one, value in vars(modules[place]).items() if is_own(value, modules[place]))
        raise NotUsable(f"there is no {attribute} in {file}; it has {there or 'no function'}")
    if isinstance(found, type) and callable(getattr(found, "reset", None)) and callable(getattr(found, "step", None)):
        raise NotUsable(
            f"{attribute} is an environment: name it in [grpo.environment], and `data preview` shows an episode "
            "(docs/environments.md)"
        )
    if isinstance(found, type):
        raise NotUsable(
            f"{attribute} is a class; give an instance of it a name of its own in {file.name}, and use that"
        )
    if not callable(found):
        raise NotUsable(f"{attribute} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def is_own(value: Any, module: ModuleType) -> bool:
    """Whether a module defines this function itself."""
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def signature_of(function: Callable[..., Any]) -> Signature:
    """Raises NotUsable if it has neither form."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise NotUsable(f"its parameters cannot be read: {error}") from error
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    named = [one for one in parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    given_by_place = [one.name for one in parameters.values() if one.kind is one.POSITIONAL_ONLY]
    takes_groups = bool({"prompts", "completions"} & set(names)) or (takes_any and "completion" not in names)
    if given_by_place or not (takes_groups or "completion" in names):
        shown = ", ".join(str(one) for one in parameters.values())
        raise NotUsable(
            f"it takes ({shown}), which is neither f(problem, completion, facts) nor f(prompts, completions, **columns)"
        )
    required = [one.name for one in named if one.default is one.empty]
    if not takes_groups and (strange := [one for one in required if one not in OURS]):
        raise NotUsable(
            f"it requires `{strange[0]}`; a function of one rollout is given problem, completion and facts, and reads "
            f"a column as problem.{strange[0]}"
        )
    return Signature(
        takes_groups, is_async(function), names, takes_any, [one for one in required if one not in (*TRLS, *OURS)]
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine: functions, partials of them, and instances whose `__call__` is one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
