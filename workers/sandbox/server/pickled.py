"""A safe reader of pickles that contain only lists, tuples, dicts, text, numbers, booleans and None.

Pure. `pickletools` parses the opcodes without executing them. Opcodes for classes, modules or bytes are refused.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8
"""
VALUES = frozenset(_VALUES.split())
"""Opcodes that push their argument."""
EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
PUTS, GETS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"}), frozenset({"GET", "BINGET", "LONG_BINGET"})
KEYS = (str, int, float, type(None))
NEWEST = 5
"""Newest supported pickle protocol version."""


class NotPlain(ValueError):
    """The bytes are not a pickle of plain values; the message is the reason."""


def read(data: bytes) -> Any:
    """Read one pickled value. Raises NotPlain."""
    reader = _Reader()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            reader.step(opcode.name, argument)
        (value,) = reader.stack
    except NotPlain:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error) as error:
        raise NotPlain(f"not a whole pickle: {type(error).__name__}") from error
    return value


class _Reader:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in PUTS:
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in GETS:
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("FRAME", "STOP"):
            pass
        elif name == "PROTO":
            if argument > NEWEST:
                raise NotPlain(f"a pickle of version {argument}; known are those up to {NEWEST}")
        else:
            self._collect(name)

    def _collect(self, name: str) -> None:
        if name in SHORT_TUPLES:
            self.stack.append(tuple(self._cut(len(self.stack) - SHORT_TUPLES[name])))
        elif name == "TUPLE":
            self.stack.append(tuple(self._marked()))
        elif name == "LIST":
            self.stack.append(self._marked())
        elif name == "DICT":
            self._fill({}, self._marked(), push=True)
        elif name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else self._cut(len(self.stack) - 1)
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else self._cut(len(self.stack) - 2)
            self._fill(self._top(dict), items, push=False)
        else:
            raise NotPlain(f"a pickle with {name}; lists, dicts, text and numbers are read, nothing else")

    def _cut(self, start: int) -> list[Any]:
        if start < 0:
            raise IndexError
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _marked(self) -> list[Any]:
        return self._cut(self._marks.pop())

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError
        return self.stack[-1]

    def _fill(self, target: dict[Any, Any], items: list[Any], *, push: bool) -> None:
        if len(items) % 2 or not all(isinstance(key, KEYS) for key in items[::2]):
            raise TypeError
        target.update(zip(items[::2], items[1::2], strict=True))
        if push:
            self.stack.append(target)
