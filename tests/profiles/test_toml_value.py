"""A value written as TOML is the same when it is read."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.toml_value import toml_value

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_comes_back(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"_": {}}, "{_ = {}}"),
        ({"a key": [1, 2.5, True]}, '{"a key" = [1, 2.5, true]}'),
        ("back\\slash\x7f", '"back\\\\slash\\u007f"'),
    ],
)
def test_it_is_written_as_people_write_it(value: object, text: str) -> None:
    assert toml_value(value) == text
