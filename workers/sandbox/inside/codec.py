"""Values to and from JSON trees that keep Python's types: what crosses the wall, in both directions.

Pure. None, bool, int and str are themselves in JSON; every other type is a list that begins with its tag. Types are
tested by identity (`type(value) is int`), so that a subclass with methods of its own cannot pass as its base.
"""

from __future__ import annotations

import math
from typing import Any

MAX_DEPTH = 32
MAX_NODES = 10_000
MAX_TEXT = 65_536
"""Characters of all strings together, and bytes of all byte strings."""
MAX_INT_BITS = 4_096

Tree = Any
"""A JSON value: None, bool, int, str, or a list whose first element is the tag."""


class NotLiteral(Exception):
    """The value has a type that no literal can write."""


class TooLarge(Exception):
    """The value is a literal, but beyond a cap of this module."""


class BadTree(Exception):
    """The JSON tree was not made by `encode`."""


class _Encoder:
    """One encoding, with what is left of its caps."""

    def __init__(self) -> None:
        self.nodes = MAX_NODES
        self.text = MAX_TEXT

    def tree(self, value: object, depth: int) -> Tree:
        self.nodes -= 1
        if self.nodes < 0:
            raise TooLarge(f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:  # type: ignore[attr-defined]
                raise TooLarge(f"integer of more than {MAX_INT_BITS} bits")
            return value
        if kind is str:
            self.spend(len(value))  # type: ignore[arg-type]
            return value
        if kind is float:
            return ["f", float.hex(value)]  # type: ignore[arg-type]
        return self.tagged(value, depth)

    def tagged(self, value: Any, depth: int) -> Tree:
        kind = type(value)
        if kind is list:
            return ["l", *[self.tree(item, depth + 1) for item in value]]
        if kind is tuple:
            return ["t", *[self.tree(item, depth + 1) for item in value]]
        if kind is set:
            return ["s", *[self.tree(item, depth + 1) for item in value]]
        if kind is dict:
            return ["d", *[self.tree(part, depth + 1) for item in value.items() for part in item]]
        if kind is bytes:
            self.spend(len(value))
            return ["b", value.hex()]
        if kind is complex and math.isfinite(value.real) and math.isfinite(value.imag):
            return ["c", value.real.hex(), value.imag.hex()]
        name = getattr(kind, "__name__", "?")
        raise NotLiteral(f"a value of type {name[:80] if type(name) is str else '?'} is no literal")

    def spend(self, size: int) -> None:
        self.text -= size
        if self.text < 0:
            raise TooLarge(f"more than {MAX_TEXT} characters of text")


def encode(value: object) -> Tree:
    """The JSON tree of a literal value. Raises NotLiteral or TooLarge."""
    return _Encoder().tree(value, 0)


def decode(tree: Tree) -> Any:
    """The value of a JSON tree, freshly built. Raises BadTree if the tree was not made by `encode`.

    The caps hold here too: the tree may come from a process that never ran `encode`.
    """
    encoder = _Encoder()
    try:
        value = _decode(tree, 0)
        encoder.tree(value, 0)
    except (TypeError, ValueError, IndexError, OverflowError, NotLiteral, TooLarge) as error:
        raise BadTree(str(error)) from error
    return value


def _decode(tree: Tree, depth: int) -> Any:
    if tree is None or type(tree) in (bool, int, str):
        return tree
    if type(tree) is not list or depth > MAX_DEPTH:
        raise BadTree("neither a JSON atom nor a tagged list")
    tag = tree[0]
    if tag in ("l", "t", "s", "d"):
        items = [_decode(item, depth + 1) for item in tree[1:]]
        if tag == "l":
            return items
        if tag == "t":
            return tuple(items)
        if tag == "s":
            return set(items)
        if len(items) % 2:
            raise BadTree("a dict with a key and no value")
        return dict(zip(items[::2], items[1::2], strict=True))
    if tag == "f" and len(tree) == 2:
        return float.fromhex(tree[1])
    if tag == "b" and len(tree) == 2:
        return bytes.fromhex(tree[1])
    if tag == "c" and len(tree) == 3:
        return complex(float.fromhex(tree[1]), float.fromhex(tree[2]))
    raise BadTree("unknown tag")
