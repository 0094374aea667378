"""The pairs of an induction task: how many its prompt shows, and whether the hidden ones are new. (pure)"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from workers.sandbox.literal import Arguments, Rejected, parse_arguments, parse_value, render
from workers.tasks import programs

UNKNOWN = object()
"""Stands for a default that is not a literal: only running it would give its value."""


def num_shown_of(num_pairs: int, num_shown: int | None) -> int:
    """How many of `num_pairs` a prompt shows: `num_shown`, or half of them where that is None or would hide none."""
    return num_pairs // 2 if num_shown is None or num_pairs <= num_shown else num_shown


def hides_a_shown_input(program: str, inputs: Sequence[str], num_shown: int | None) -> bool:
    """Whether a hidden input makes the same call as a shown one, so that a table of the shown pairs answers it.

    Calls are the same if they bind equal values to the parameters of `f`, by position or by name, with literal defaults
    filled in. Equal means Python's `==`, as in a dictionary lookup: 1 equals 1.0 and True, and the order of a dict or
    set does not count. inputs: argument lists. Raises `Rejected` for a text that is not one.
    """
    signature = _signature(program)
    calls = [_call(signature, parse_arguments(text)) for text in inputs]
    count = num_shown_of(len(calls), num_shown)
    return any(hidden in calls[:count] for hidden in calls[count:])


def bound_text(program: str, text: str) -> str:
    """The arguments by position, with literal defaults filled in. Calls of `f` that bind equal texts look alike.

    Raises `Rejected` for a text that is not an argument list.
    """
    arguments = parse_arguments(text)
    call = _call(_signature(program), arguments)
    if isinstance(call, Arguments):
        return call.text
    return ", ".join(render(value) for value in call.values() if value is not UNKNOWN)


def _call(signature: Signature | None, arguments: Arguments) -> Mapping[str, Any] | Arguments:
    if signature is not None:
        try:
            bound = signature.bind(*arguments.positional, **dict(arguments.keywords))
        except TypeError:  # running it raises too
            return arguments
        bound.apply_defaults()
        return bound.arguments
    return arguments


def _signature(program: str) -> Signature | None:
    """The signature of the top-level `f`; None if there is none, or it names a parameter twice."""
    tree = programs.parse(program)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "f"] if tree else []
    if not found:
        return None
    given = found[-1].args
    places: list[tuple[ast.arg, inspect._ParameterKind]] = []
    places += [(one, Parameter.POSITIONAL_ONLY) for one in given.posonlyargs]
    places += [(one, Parameter.POSITIONAL_OR_KEYWORD) for one in given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + given.defaults
    parameters = [_parameter(one.arg, kind, default) for (one, kind), default in zip(places, defaults, strict=True)]
    if given.vararg:
        parameters.append(Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL))
    parameters += [
        _parameter(one.arg, Parameter.KEYWORD_ONLY, default)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        parameters.append(Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD))
    try:
        return Signature(parameters)
    except ValueError:
        return None


def _parameter(name: str, kind: inspect._ParameterKind, default: ast.expr | None) -> Parameter:
    """A default that is not a literal equals only itself."""
    if default is None:
        return Parameter(name, kind)
    try:
        return Parameter(name, kind, default=parse_value(ast.unparse(default)))
    except Rejected:
        return Parameter(name, kind, default=UNKNOWN)
