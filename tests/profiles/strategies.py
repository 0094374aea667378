"""Hypothesis strategies for knobs and profiles, made from the schema, and a writer of TOML to feed them back."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from profiles.knobs import base_type, describe, knobs
from profiles.schema import Profile

SAFE_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)

WORDS = st.text("abc_", min_size=1, max_size=4)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that fit the type; its bounds are asked of msgspec itself, so that they are not written twice."""
    return _of_type(base_type(annotation)).filter(lambda value: _fits(value, annotation))


def _of_type(base: Any) -> st.SearchStrategy[Any]:
    if get_origin(base) is Literal:
        return st.sampled_from(get_args(base))
    if get_origin(base) in (Union, UnionType):
        return st.one_of(*map(values, get_args(base)))
    if get_origin(base) is tuple:
        items = get_args(base)
        if items[-1] is Ellipsis:
            return st.lists(values(items[0]), max_size=4, unique=True).map(tuple)
        return st.tuples(*(values(item) for item in items))
    if get_origin(base) is dict:
        return st.dictionaries(WORDS, st.dictionaries(WORDS, st.integers(0, 9) | SAFE_TEXT, max_size=2), max_size=2)
    return {
        int: st.integers(0, 10**6),
        # + 0.0: no -0.0, which the loader spells 0.0.
        float: (st.floats(0, 10) | st.floats(-10, 1e6)).map(lambda number: number + 0.0),
        bool: st.booleans(),
        str: SAFE_TEXT,
    }[base]


def _fits(value: Any, annotation: Any) -> bool:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


@st.composite
def settings_of_knobs(draw: st.DrawFn) -> dict[str, Any]:
    """Some knobs, by full name, with values that each are within bounds; together they may still contradict."""
    chosen = draw(st.lists(st.sampled_from(sorted(set(knobs()) - {"name"})), max_size=6, unique=True))
    return {name: draw(values(knobs()[name].annotation), label=describe(knobs()[name].annotation)) for name in chosen}


def profile_with(name: str, settings: dict[str, Any]) -> Profile:
    """The profile that these settings ask for, made without the loader, which would refuse values of a wrong type."""
    profile = Profile(name=name)
    for knob, value in settings.items():
        profile = _replaced(profile, knob, value)
    return profile


def _replaced(held: Any, knob: str, value: Any) -> Any:
    key, dot, rest = knob.partition(".")
    return msgspec.structs.replace(held, **{key: _replaced(getattr(held, key), rest, value) if dot else value})


def as_toml(settings: dict[str, Any]) -> str:
    """A file that says these settings."""
    by_section: dict[str, list[str]] = {"": []}
    for knob, value in settings.items():
        section, _, key = knob.rpartition(".")
        by_section.setdefault(section, []).append(f"{key} = {toml_value(value)}")
    return (
        "\n".join("\n".join([f"[{section}]"] * bool(section) + lines) for section, lines in by_section.items()) + "\n"
    )


def toml_value(value: Any) -> str:
    """JSON's spelling of these types is also TOML's, but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    return msgspec.json.encode(value).decode()
