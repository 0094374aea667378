"""The knobs of schema.py as data: name, type, default, bounds, kind of change. (pure, except `docstrings`)"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from profiles.schema import Profile, Section

ChangeKind = Literal["fixed", "free", "guarded"]


class Knob(Struct, frozen=True):
    """One knob. `name` is `section.key`, or only the key for a knob outside all sections.

    section: full name of the section, such as `azr.variants`.
    """

    section: str
    key: str
    annotation: Any
    """Its type with bounds and marks, for msgspec."""
    default: Any
    """NODEFAULT if a profile must set it."""

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def kind(self) -> ChangeKind:
        """Whether it may change once a run has begun."""
        marks = {meta.extra["change"] for meta in _metas(self.annotation) if meta.extra and "change" in meta.extra}
        if "fixed" in marks:
            return "fixed"
        return "free" if "free" in marks else "guarded"

    @property
    def rule(self) -> str:
        """The allowed values, worded to follow "must be"."""
        return describe(self.annotation)


@cache
def sections() -> dict[str, type[Section]]:
    """Name -> class of each section, in the order of the schema; `azr.variants` follows `azr`."""
    return dict(_sections_of(Profile, ""))


def _sections_of(cls: type[Section], prefix: str) -> Iterator[tuple[str, type[Section]]]:
    for key, hint in get_type_hints(cls, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield f"{prefix}{key}", hint
            yield from _sections_of(hint, f"{prefix}{key}.")


@cache
def knobs() -> dict[str, Knob]:
    """Every knob by its full name, in the order of the schema."""
    return {knob.name: knob for knob in _all_knobs()}


def knobs_of(section: str) -> dict[str, Knob]:
    """Key -> knob of one section; "" for the knobs outside all sections."""
    return {knob.key: knob for knob in knobs().values() if knob.section == section}


def _all_knobs() -> Iterator[Knob]:
    classes = sections()
    every: dict[str, type[Section]] = {"": Profile, **classes}
    for section, cls in every.items():
        for field in fields(cls):
            default = {} if field.default_factory is dict else field.default
            knob = Knob(section, field.name, field.type, default)
            if knob.name not in classes:
                yield knob


def describe(annotation: Any) -> str:
    """A type in words: `an integer >= 2`, `one of azr, fake`, `a list of ...`."""
    base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if own_rule := _extra(annotation, "rule"):
        return str(own_rule)
    bounds = [
        f"{sign} {value}"
        for meta in _metas(annotation)
        for sign, value in ((">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le))
        if value is not None
    ]
    words = _describe_base(base)
    if any(meta.min_length for meta in _metas(annotation)):
        words += ", not empty"
    return " ".join([words, " and ".join(bounds)]).strip()


def _describe_base(base: Any) -> str:
    if get_origin(base) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(base))
    if get_origin(base) is tuple:
        items = get_args(base)
        if items[-1] is Ellipsis:
            return f"a list, each {describe(items[0])}"
        return f"a list of {len(items)}, each {describe(items[0])}"
    if get_origin(base) in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(base))
    if get_origin(base) is dict:
        return "a table"
    return {int: "an integer", float: "a number", bool: "true or false", str: "a text"}[base]


def choices(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal or a text with suggested values, also inside a list; empty for other types."""
    base = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(base) is tuple:
        return choices(get_args(base)[0])
    return get_args(base) if get_origin(base) is Literal else _extra(annotation, "choices") or ()


def base_type(annotation: Any) -> Any:
    """The type without bounds and marks."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _metas(annotation: Any) -> list[Meta]:
    if get_origin(annotation) is not Annotated:
        return []
    return [meta for meta in get_args(annotation)[1:] if isinstance(meta, Meta)]


def _extra(annotation: Any, name: str) -> Any:
    """The value of an extra mark on the type; None if there is none."""
    return next((meta.extra[name] for meta in _metas(annotation) if meta.extra and name in meta.extra), None)


def value_of(profile: Profile, name: str) -> Any:
    """Value of a knob by its full name."""
    return attrgetter(name)(profile)


def with_values(profile: Profile, values: Mapping[str, Any]) -> Profile:
    """The profile with changed knobs. values: full name -> value."""
    for name, value in values.items():
        profile = _with(profile, name.split("."), value)
    return profile


def _with(held: Any, path: list[str], value: Any) -> Any:
    key, *inner = path
    return replace(held, **{key: _with(getattr(held, key), inner, value) if inner else value})


def docstrings() -> dict[str, str]:
    """Full name of each knob and section -> its docstring, read from the source."""
    import ast  # only help and documentation need it

    modules = dict.fromkeys(cls.__module__ for cls in (Profile, *sections().values()))
    files = [Path(__file__).parents[1] / f"{module.replace('.', '/')}.py" for module in modules]
    texts = [file.read_text(encoding="utf-8") for file in files]
    by_class = {cls.__name__: name for name, cls in sections().items()} | {"Profile": ""}
    found: dict[str, str] = {}
    for node in (node for text in texts for node in ast.parse(text).body):
        if not isinstance(node, ast.ClassDef) or node.name not in by_class:
            continue
        section = by_class[node.name]
        found[section] = ast.get_docstring(node) or ""
        for statement, after in zip(node.body, node.body[1:], strict=False):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[f"{section}.{key}" if section else key] = " ".join(text.split())
    return found
