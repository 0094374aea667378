"""Encodes Python values as type-preserving JSON and decodes them, to pass results out of the sandbox.

Pure. None, bool, int and str map to plain JSON; every other type becomes a list that starts with a type tag. Types are
compared by identity (`type(value) is int`), so that a subclass with its own methods cannot pose as its base class.
`encode` writes the text directly: `json.dumps` of a tree takes three times as long in a short-lived process.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring_ascii
from typing import Any

MAX_DEPTH = 32
MAX_NODES = 10_000
MAX_TEXT = 65_536
"""Total size of all strings (in characters) and byte strings (in bytes) together."""
MAX_INT_BITS = 4_096

Tree = Any
"""A parsed JSON value: None, bool, int, str, or a list whose first element is the tag."""


class NotLiteral(Exception):
    """The value's type has no literal form."""


class TooLarge(Exception):
    """The value is a literal but exceeds a limit of this module."""


class BadTree(Exception):
    """The JSON tree is not valid output of `encode`."""


class _Caps:
    """Remaining budget while one value is encoded or decoded."""

    __slots__ = ("nodes", "text")

    def __init__(self) -> None:
        self.nodes = MAX_NODES
        self.text = MAX_TEXT

    def node(self, depth: int) -> None:
        self.nodes -= 1
        if self.nodes < 0:
            raise TooLarge(f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")

    def spend(self, size: int) -> None:
        self.text -= size
        if self.text < 0:
            raise TooLarge(f"more than {MAX_TEXT} characters of text")

    @staticmethod
    def bits(value: int) -> None:
        if value.bit_length() > MAX_INT_BITS:
            raise TooLarge(f"integer of more than {MAX_INT_BITS} bits")


def encode(value: object) -> str:
    """Encode a literal value as JSON text. Raises NotLiteral or TooLarge."""
    return _encode(value, 0, _Caps())


def _encode(value: Any, depth: int, caps: _Caps) -> str:
    caps.node(depth)
    kind = type(value)
    if kind is int:
        caps.bits(value)
        return repr(value)
    if kind is str:
        caps.spend(len(value))
        return encode_basestring_ascii(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is list:
        return _tagged("l", value, depth, caps)
    if kind is tuple:
        return _tagged("t", value, depth, caps)
    if kind is set:
        return _tagged("s", value, depth, caps)
    if kind is dict:
        return _tagged("d", [part for item in value.items() for part in item], depth, caps)
    return _encode_rare(value, caps)


def _tagged(tag: str, items: Any, depth: int, caps: _Caps) -> str:
    return ",".join([f'["{tag}"', *[_encode(item, depth + 1, caps) for item in items]]) + "]"


def _encode_rare(value: Any, caps: _Caps) -> str:
    kind = type(value)
    if kind is float:
        return f'["f","{value.hex()}"]'
    if kind is bytes:
        caps.spend(len(value))
        return f'["b","{value.hex()}"]'
    if kind is complex and math.isfinite(value.real) and math.isfinite(value.imag):
        return f'["c","{value.real.hex()}","{value.imag.hex()}"]'
    name = getattr(kind, "__name__", "?")
    raise NotLiteral(f"a value of type {name[:80] if type(name) is str else '?'} is no literal")


def decode(tree: Tree) -> Any:
    """Build a new value from parsed JSON. Raises BadTree if `encode` cannot have produced it.

    The limits apply here too: the text may come from a process that never ran `encode`.
    """
    try:
        return _decode(tree, 0, _Caps())
    except (TypeError, ValueError, IndexError, OverflowError, TooLarge) as error:
        raise BadTree(str(error)) from error


def _decode(tree: Tree, depth: int, caps: _Caps) -> Any:
    caps.node(depth)
    kind = type(tree)
    if kind is int:
        caps.bits(tree)
        return tree
    if kind is str:
        caps.spend(len(tree))
        return tree
    if tree is None or kind is bool:
        return tree
    if kind is not list:
        raise BadTree("neither a JSON atom nor a tagged list")
    tag = tree[0]
    if tag in ("l", "t", "s", "d"):
        return _collection(tag, [_decode(item, depth + 1, caps) for item in tree[1:]])
    if tag == "f" and len(tree) == 2:
        return float.fromhex(tree[1])
    if tag == "b" and len(tree) == 2:
        caps.spend(len(tree[1]) // 2)
        return bytes.fromhex(tree[1])
    if tag == "c" and len(tree) == 3:
        return complex(float.fromhex(tree[1]), float.fromhex(tree[2]))
    raise BadTree("unknown tag")


def _collection(tag: str, items: list[Any]) -> Any:
    if tag == "l":
        return items
    if tag == "t":
        return tuple(items)
    if tag == "s":
        return set(items)
    if len(items) % 2:
        raise BadTree("a dict with a key and no value")
    return dict(zip(items[::2], items[1::2], strict=True))
