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
"""The value of a default that is no literal: it is not known before it is run."""


def shown_of(num_pairs: int, num_shown: int | None) -> int:
    """How many of `num_pairs` a prompt shows: `num_shown`, or half of them where that is None or would hide none."""
    return num_pairs // 2 if num_shown is None or num_pairs <= num_shown else num_shown


def hides_a_shown_input(program: str, inputs: Sequence[str], num_shown: int | None) -> bool:
    """Whether a hidden input makes the same call as a shown one, so that a table of the shown pairs answers it.

    Calls are the same if they bind equal values to the parameters of `f`: Python's `==`, as a dictionary of the solver
    would look them up (1 is 1.0 and True, the order of a dict or set does not count), by position or by name, with
    literal defaults filled in. inputs: argument lists. Raises `Rejected` for a text that is none.
    """
    signature = _signature(program)
    calls = [_call(signature, parse_arguments(text)) for text in inputs]
    count = shown_of(len(calls), num_shown)
    return any(hidden in calls[:count] for hidden in calls[count:])


def bound_text(program: str, text: str) -> str:
    """The arguments by position, with literal defaults filled in: calls of `f` that bind equal texts are written alike.

    Raises `Rejected` for a text that is no argument list.
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
        except TypeError:  # it will raise when it is run, too
            return arguments
        bound.apply_defaults()
        return bound.arguments
    return arguments


def _signature(program: str) -> Signature | None:
    """Of the top-level `f`; None where there is none, or its text names a parameter twice."""
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
    """A default that is no literal equals itself alone."""
    if default is None:
        return Parameter(name, kind)
    try:
        return Parameter(name, kind, default=parse_value(ast.unparse(default)))
    except Rejected:
        return Parameter(name, kind, default=UNKNOWN)
