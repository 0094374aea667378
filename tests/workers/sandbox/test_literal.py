"""Literal texts: what is accepted, what is refused, and which values are the same."""

from __future__ import annotations

import json
import marshal
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.inside.codec import BadTree, NotLiteral, TooLarge, decode, encode
from workers.sandbox.literal import (
    Arguments,
    Rejected,
    canonical_arguments,
    output_reason,
    parse_arguments,
    parse_value,
    render,
    same,
    same_value,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param("1, 2", "1, 2", id="V1 two"),
        ("1,2", "1, 2"),
        pytest.param("'a', {'k': [1]}", "'a', {'k': [1]}", id="V1 a dict"),
        pytest.param("numbers=[2, 3]", "numbers=[2, 3]", id="V1 named"),
        pytest.param("set()", "set()", id="V1 an empty set"),
        pytest.param("-1+2j", "(-1+2j)", id="V1 complex"),
        pytest.param("[1,\n 2]", "[1, 2]", id="V3 over two lines"),
        ("{3, 1, 2}", "{1, 2, 3}"),
        ("(1,)", "(1,)"),
        ('"it\'s", b"x"', "\"it's\", b'x'"),
        ("--1", None),
    ],
)
def test_arguments_that_are_literals_are_accepted_in_canonical_form(text: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(Rejected):
            canonical_arguments(text)
    else:
        assert canonical_arguments(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1) or True or f(1", id="V2 1) or True or f(1"),
        pytest.param("1).bit_length(", id="V2 1).bit_length("),
        pytest.param("1)(2", id="V2 1)(2"),
        pytest.param("__import__('os')", id="V2 __import__('os')"),
        pytest.param("*[1]", id="V2 *[1]"),
        pytest.param("**{'a': 1}", id="V2 **{'a': 1}"),
        pytest.param("range(3)", id="V2 range(3)"),
        pytest.param("1;2", id="V2 1;2"),
        pytest.param("f'a'", id="V2 f'a'"),
        pytest.param("", id="V2 empty"),
        "x",
        "nan",
        "1e999",
        "...",
        "a=1, a=2",
        "x := 1",
        "lambda: 1",
        "[x for x in [1]]",
        "{[1]: 2}",
        "{**{}}",
        "1 # comment",
        "1 + 1",
        "9" * 5000,
        "0x" + "f" * 2000,
        "[" * 100 + "]" * 100,
        "-" * 50_000 + "1",
        "(" * 30_000,
        "'" + "a" * 70_000 + "'",
        "\0",
    ],
)
def test_arguments_that_are_no_literals_are_rejected_with_a_reason(text: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse_arguments(text)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "same_by_default", "same_strictly"),
    [
        ("{1, 2}", "{2, 1}", True, True),
        ("1", "1.0", True, False),
        ("1", "True", True, False),
        ("(1, 2)", "[1, 2]", False, False),
        ("'2'", "'1+1'", False, False),
        ("2", "1+1", False, False),
        ("nan", "nan", True, True),
        ("[nan]", "[nan]", True, True),
        ("-0.0", "0.0", False, False),
        ("0", "0.0", True, False),
        ("0", "-0.0", False, False),
        ("inf", "-inf", False, False),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True, True),
        ("{1: 'x'}", "{1.0: 'x'}", True, False),
        ("{(1, 2): {3}}", "{(1, 2): {3}}", True, True),
        ("1+0j", "1", True, False),
        ("b'a'", "'a'", False, False),
        ("None", "False", False, False),
        ("object()", "object()", False, False),
        ("1, 2", "(1, 2)", True, True),
        ("' a'", "'a'", False, False),
    ],
)
def test_sameness_is_pythons_equality_with_stated_exceptions(
    a: str, b: str, same_by_default: bool, same_strictly: bool
) -> None:
    assert same_value(a, b) is same_by_default
    assert same_value(b, a) is same_by_default
    assert same_value(a, b, strict_types=True) is same_strictly


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("1", True),
        ("[1, 'a']", True),
        ("nan", False),
        ("[inf]", False),
        ("Counter({'a': 2})", False),
        ("None", False),
        (repr("x" * 5000), False),
    ],
)
def test_an_answer_must_be_a_short_finite_literal(text: str, fits: bool) -> None:
    assert (output_reason(text) is None) is fits


def test_none_is_an_answer_where_the_profile_allows_it() -> None:
    assert output_reason("None", allow_none=True) is None


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**4095), 2**4095)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.binary(max_size=20)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
)
HASHABLE = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.sets(HASHABLE, max_size=5)
        | st.dictionaries(HASHABLE, inner, max_size=5)
    ),
    max_leaves=20,
)


def _types(value: Any) -> Any:
    if type(value) in (list, tuple):
        return (type(value), [_types(item) for item in value])
    return type(value)


@given(VALUES)
def test_the_codec_round_trips_every_literal_with_its_type(value: Any) -> None:
    again = decode(json.loads(encode(value)))
    assert same(value, again, strict_types=True)
    assert _types(value) == _types(again)


@given(VALUES)
def test_packed_arguments_are_built_afresh_with_their_types(value: Any) -> None:
    (first, second), named = marshal.loads(Arguments((value, value), (("k", value),)).packed)
    for again in (first, second, named["k"]):
        assert same(value, again, strict_types=True)
        assert _types(value) == _types(again)
    assert first is not second or type(value) not in (list, dict, set)


@given(VALUES)
def test_the_canonical_text_round_trips_every_literal(value: Any) -> None:
    text = render(value)
    assert same(value, parse_value(text), strict_types=True)
    assert render(parse_value(text)) == text
    assert "\n" not in text


@given(st.text(max_size=60))
def test_no_text_makes_the_parser_fail_otherwise_than_by_rejection(text: str) -> None:
    for parse in (parse_arguments, parse_value):
        try:
            parse(text)
        except Rejected:
            continue


class Sly(int):
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize("value", [Sly(1), object(), frozenset({1}), range(3), len, [Sly(2)], complex(math.nan, 0)])
def test_values_of_other_types_are_no_literals(value: object) -> None:
    with pytest.raises(NotLiteral):
        encode(value)


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [2**4096, "x" * 65_537, b"x" * 65_537, list(range(10_001)), _nested(33)], ids=lambda v: type(v).__name__
)
def test_values_beyond_the_caps_are_too_large(value: object) -> None:
    with pytest.raises(TooLarge):
        encode(value)


@pytest.mark.parametrize(
    "tree",
    [1.5, [], ["x"], ["l", 1.5], ["f"], ["f", "zz"], ["f", 1], ["b", "0"], ["d", 1], ["s", ["l"]], {}, ["d", ["l"], 1]],
)
def test_trees_that_no_encoder_made_are_refused(tree: Any) -> None:
    with pytest.raises(BadTree):
        decode(tree)
