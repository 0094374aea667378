"""Loads the user's functions, and tells the two forms apart by the names of their parameters.

Ours takes one rollout: f(problem, completion, facts). TRL's takes all of a problem: f(prompts, completions, **columns).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from profiles.reward_files import is_file
from workers.rewards.functions.protocol import Signature

OURS = ("problem", "completion", "facts")
TRLS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


class NoFunction(Exception):
    """Why a name leads to no function that can be called."""


def load(name: str, file: Path, modules: dict[str, ModuleType]) -> Callable[..., Any]:
    """Import the file once, and return the function. modules: those imported so far, by place. Raises NoFunction."""
    place, _, attribute = name.rpartition(":")
    if place not in modules:
        modules[place] = imported(place, file)
    found = getattr(modules[place], attribute, None)
    if found is None:
        there = ", ".join(one for one, value in vars(modules[place]).items() if is_own(value, modules[place]))
        raise NoFunction(f"there is no {attribute} in {file}; it has {there or 'no function'}")
    if isinstance(found, type):
        raise NoFunction(
            f"{attribute} is a class; give an instance of it a name of its own in {file.name}, and use that"
        )
    if not callable(found):
        raise NoFunction(f"{attribute} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def is_own(value: Any, module: ModuleType) -> bool:
    """Whether a module defines this function itself."""
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def imported(place: str, file: Path) -> ModuleType:
    """Import a FILE.py or MODULE. Raises NoFunction, with the reason."""
    try:
        return _module_of(file) if is_file(place) else importlib.import_module(place)
    except SyntaxError as error:
        where = f"{error.filename or file} line {error.lineno}"
        raise NoFunction(f"a syntax error in {where}: {error.msg}: {(error.text or '').strip()}") from error
    except SystemExit as error:
        raise NoFunction(f"{file} calls exit({error.code}) when it is imported") from error
    except BaseException as error:  # the user's code may raise anything
        raise NoFunction(f"importing {file} raises {brief(error)}{_where(error, file)}") from error


def _module_of(file: Path) -> ModuleType:
    # Last: a json.py beside the file must not hide Python's own from anybody.
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    is_free = file.stem not in sys.modules and file.stem not in sys.stdlib_module_names
    name = file.stem if is_free else f"own_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "file_of takes Python files only"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException, file: Path) -> str:
    """The last line of the user's file that took part."""
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


def brief(error: BaseException) -> str:
    """Type and message, in one line that a screen can hold."""
    try:
        text = str(error)
    except BaseException:  # its own __str__ may raise
        text = ""
    first = text.strip().split("\n")[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def signature_of(function: Callable[..., Any]) -> Signature:
    """Raises NoFunction if it has neither form."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise NoFunction(f"its parameters cannot be read: {error}") from error
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    named = [one for one in parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    given_by_place = [one.name for one in parameters.values() if one.kind is one.POSITIONAL_ONLY]
    takes_groups = bool({"prompts", "completions"} & set(names)) or (takes_any and "completion" not in names)
    if given_by_place or not (takes_groups or "completion" in names):
        shown = ", ".join(str(one) for one in parameters.values())
        raise NoFunction(
            f"it takes ({shown}), which is neither f(problem, completion, facts) nor f(prompts, completions, **columns)"
        )
    required = [one.name for one in named if one.default is one.empty]
    if not takes_groups and (strange := [one for one in required if one not in OURS]):
        raise NoFunction(
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
