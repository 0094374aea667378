"""Pickles are read as data: what holds anything but lists, dicts, text and numbers is refused, and nothing runs."""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.server import pickled
from workers.sandbox.server.pickled import NotPlain, read

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner))


@given(VALUES, st.sampled_from(range(pickle.HIGHEST_PROTOCOL + 1)))
def test_every_plain_value_is_read_from_every_version_of_the_format(value: object, version: int) -> None:
    assert read(pickle.dumps(value, version)) == value


def test_tests_as_open_instruct_packs_them_are_read() -> None:
    tests = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}] * 40 + ["assert f(1) == 2"]
    assert read(pickle.dumps(tests)) == tests


class Touches:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (Path.touch, (self.path,))


def test_a_pickle_that_would_run_code_is_refused_and_does_not(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for version in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(NotPlain):
            read(pickle.dumps([Touches(canary)], version))
    assert not canary.exists()
    pickle.loads(pickle.dumps(Touches(canary)))  # noqa: S301  the attack works where nobody looks
    assert canary.exists()


@pytest.mark.parametrize(
    "value", [b"bytes", {1, 2}, frozenset(), OrderedDict(a=1), 1j, print, bytearray(b"x")], ids=lambda value: str(value)
)
def test_other_values_are_refused_with_their_opcode(value: object) -> None:
    with pytest.raises(NotPlain, match=r"a pickle with [A-Z]"):
        read(pickle.dumps(value))


@pytest.mark.parametrize(
    "data", [b"", b".", b"no pickle", b"\x80\x04]", b"\x80\x04e.", b"(t", b"\x80\x04N\x85s.", b"\x80\x09N.", b"NN."]
)
def test_what_is_no_whole_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(NotPlain):
        read(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with suppress(NotPlain):
        read(b"\x80\x04" + data)


def test_every_opcode_is_either_read_or_refused() -> None:
    """A new opcode of a later Python must fall to the side of refusal."""
    collecting = "TUPLE1 TUPLE2 TUPLE3 TUPLE LIST DICT APPEND APPENDS SETITEM SETITEMS"
    single = {"MEMOIZE", "MARK", "FRAME", "STOP", "PROTO", *collecting.split()}
    plain = single.union(pickled.VALUES, pickled.CONSTANTS, pickled.EMPTY, pickled.PUTS, pickled.GETS)
    others = [opcode.name for opcode in pickletools.opcodes if opcode.name not in plain]
    assert {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "EXT1", "PERSID"} <= {*others}
    for name in [*others, "OPCODE_OF_A_LATER_PYTHON"]:
        with pytest.raises(NotPlain, match=f"a pickle with {name};"):
            pickled._Reader().step(name, None)
