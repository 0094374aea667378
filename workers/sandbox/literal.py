"""Literals: parses arguments and values without evaluating them, and writes them in a canonical form.

Pure. The text is parsed to a syntax tree, and only literal nodes are accepted.
"""

from __future__ import annotations

import ast
import marshal
import math
import warnings
from dataclasses import dataclass
from typing import Any

from workers.sandbox.inside.codec import (
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_TEXT,
    NotLiteral,
    TooLarge,
    encode,
)

__all__ = [
    "Arguments",
    "Rejected",
    "canonical_arguments",
    "output_reason",
    "parse_arguments",
    "parse_value",
    "render",
    "same",
    "same_value",
]

SPECIAL = {"nan": math.nan, "inf": math.inf}
"""How `repr` writes floats that have no literal. Values may contain them; arguments may not."""


class Rejected(ValueError):
    """The text is not an accepted literal; the message is the reason."""


@dataclass(frozen=True)
class Arguments:
    """The argument values of one call."""

    positional: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """Canonical one-line text: `'a', k=[1]`."""
        return ", ".join(
            [*(render(value) for value in self.positional), *(f"{name}={render(v)}" for name, v in self.keywords)]
        )

    @property
    def packed(self) -> bytes:
        """The marshalled arguments for the child, which unpacks a fresh copy for each call."""
        # Marshal version 2 neither shares objects nor interns strings.
        return marshal.dumps((self.positional, dict(self.keywords)), 2)

    def check(self) -> None:
        """Raises NotLiteral or TooLarge."""
        for value in self.positional:
            encode(value)
        for name, value in self.keywords:
            encode(name)
            encode(value)


def parse_arguments(text: str) -> Arguments:
    """Parse an argument list such as `1, [2]` or `numbers=[2, 3]`. Raises Rejected with the reason.

    Requires at least one argument, literals only, no `*` or `**`, and finite numbers.
    """
    # Inside `f(...)`, a text such as `1) or f(1` does not parse to a single plain call, so it is rejected below.
    call = _syntax(f"f({text.strip()})" if isinstance(text, str) else "")
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "f"):
        raise Rejected("not one argument list")
    if not call.args and not call.keywords:
        raise Rejected("no arguments")
    names = [keyword.arg for keyword in call.keywords]
    if None in names:
        raise Rejected("`**` in arguments")
    if len(set(names)) != len(names):
        raise Rejected("keyword given twice")
    arguments = Arguments(
        positional=tuple(_value(node, 0, special=False) for node in call.args),
        keywords=tuple((str(keyword.arg), _value(keyword.value, 0, special=False)) for keyword in call.keywords),
    )
    try:
        arguments.check()
    except (NotLiteral, TooLarge) as error:
        raise Rejected(str(error)) from error
    return arguments


def canonical_arguments(text: str) -> str:
    """Canonical one-line text of an argument list. Raises Rejected with the reason."""
    return parse_arguments(text).text


def parse_value(text: str) -> Any:
    """Parse a literal; `nan` and `inf` are accepted too. Raises Rejected with the reason."""
    return _value(_syntax(text.strip()), 0, special=True)


def output_reason(text: str, *, max_chars: int = 4096, allow_none: bool = False) -> str | None:
    """Why a canonical output text cannot be a task's answer, or None if it can."""
    if len(text) > max_chars:
        return f"output of {len(text)} characters, more than {max_chars}"
    try:
        value = parse_value(text)
    except Rejected as error:
        return str(error)
    if value is None and not allow_none:
        return "output is None"
    return None if _all_finite(value) else "output holds nan or inf"


def same_value(a_text: str, b_text: str, strict_types: bool = False) -> bool:
    """Whether two literal texts denote the same value.

    Follows Python's `==` (1, 1.0 and True are equal; a tuple never equals a list), except that NaN equals NaN and
    -0.0 differs from 0.0. strict_types: 1, 1.0 and True differ. A text that is not a literal equals nothing.
    """
    try:
        return same(parse_value(a_text), parse_value(b_text), strict_types)
    except Rejected:
        return False


def same(a: Any, b: Any, strict_types: bool = False) -> bool:
    """`same_value` for parsed values."""
    return bool(_key(a, strict_types) == _key(b, strict_types))


def render(value: Any) -> str:
    """Canonical literal text: `repr`, but with sorted sets and unsigned zeros in complex numbers."""
    kind = type(value)
    if kind is list:
        return "[" + ", ".join(render(item) for item in value) + "]"
    if kind is tuple:
        return "(" + ", ".join(render(item) for item in value) + (",)" if len(value) == 1 else ")")
    if kind is dict:
        return "{" + ", ".join(f"{render(key)}: {render(item)}" for key, item in value.items()) + "}"
    if kind is set:
        return "{" + ", ".join(render(item) for item in sorted(value, key=_order)) + "}" if value else "set()"
    if kind is complex:
        # No literal can express a signed zero in a complex number: Python's own repr does not round-trip.
        return repr(complex(value.real + 0.0, value.imag + 0.0))
    return repr(value)


def _order(value: Any) -> tuple[str, Any, str]:
    """Sort key for set elements: real numbers by value first, everything else by type and text."""
    if type(value) in (bool, int, float) and value == value:
        return ("", value, render(value))
    return (type(value).__name__, 0, render(value))


def _key(value: Any, strict: bool) -> Any:
    """A hashable key: two values are the same if and only if their keys are equal."""
    kind = type(value)
    if kind in (bool, int, float, complex):
        return (kind.__name__, _number_key(value)) if strict else _number_key(value)
    if kind in (list, tuple):
        return (kind.__name__, tuple(_key(item, strict) for item in value))
    if kind is set:
        return ("set", frozenset(_key(item, strict) for item in value))
    if kind is dict:
        return ("dict", frozenset((_key(key, strict), _key(item, strict)) for key, item in value.items()))
    return (kind.__name__, value)


def _number_key(value: Any) -> Any:
    if type(value) is complex:
        return _number_key(value.real) if value.imag == 0 else ("complex", value.real + 0.0, value.imag)
    if value != value:
        return ("nan",)
    if value == 0 and math.copysign(1.0, value) < 0:
        return ("-0.0",)
    return ("number", value)


def _syntax(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise Rejected(f"{len(text)} characters, more than {MAX_TEXT}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Rejected(f"syntax error: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Rejected(f"cannot be parsed: {type(error).__name__}") from error


def _value(node: ast.expr, depth: int, *, special: bool) -> Any:
    if depth > MAX_DEPTH:
        raise Rejected(f"nested deeper than {MAX_DEPTH}")

    def each(nodes: list[ast.expr]) -> list[Any]:
        return [_value(item, depth + 1, special=special) for item in nodes]

    try:
        match node:
            case ast.List(elts=items):
                return each(items)
            case ast.Tuple(elts=items):
                return tuple(each(items))
            case ast.Set(elts=items):
                return set(each(items))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return dict(zip(each([key for key in keys if key]), each(values), strict=True))
            case ast.Call(func=ast.Name(id="set"), args=[], keywords=[]):
                return set()
    except TypeError as error:
        raise Rejected(str(error)) from error
    return _atom(node, special=special)


def _atom(node: ast.expr, *, special: bool) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or type(value) in (bool, str, bytes):
            return value
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=ast.Constant(value=complex() as imaginary)):
            real = _number(left, special=special)
            if type(real) is complex:
                raise Rejected("not a literal: sum of complex numbers")
            return real + imaginary if isinstance(sign, ast.Add) else real - imaginary
    return _number(node, special=special)


def _number(node: ast.expr, *, special: bool) -> Any:
    match node:
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant() | ast.Name() as operand):
            value = _number(operand, special=special)
            return -value if isinstance(sign, ast.USub) else +value
        case ast.Name(id=name) if special and name in SPECIAL:
            return SPECIAL[name]
        case ast.Constant(value=value) if type(value) in (int, float, complex):
            if type(value) is int and value.bit_length() > MAX_INT_BITS:
                raise Rejected(f"integer of more than {MAX_INT_BITS} bits")
            if not special and not _all_finite(value):
                raise Rejected("number beyond the range of floats")
            return value
    raise Rejected(f"not a literal: {type(node).__name__}")


def _all_finite(value: Any) -> bool:
    if type(value) is dict:
        return all(_all_finite(key) and _all_finite(item) for key, item in value.items())
    if type(value) in (list, tuple, set):
        return all(_all_finite(item) for item in value)
    if type(value) is complex:
        return math.isfinite(value.real) and math.isfinite(value.imag)
    return type(value) is not float or math.isfinite(value)
