"""The built-in parts of GRPO's reward by name, and one of them with the options of a profile. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from profiles.errors import ExitCode, LonghaulError
from workers.rewards.choice import Choice
from workers.rewards.cosine import Cosine
from workers.rewards.environment import Environment
from workers.rewards.exact import Exact
from workers.rewards.format import Format
from workers.rewards.fuzzy import Fuzzy
from workers.rewards.json import Json
from workers.rewards.language import Language
from workers.rewards.length import Length
from workers.rewards.overlong import Overlong
from workers.rewards.regex import Regex
from workers.rewards.repetition import Repetition
from workers.rewards.tests import CodeTests
from workers.rewards.verifier import Verifier
from workers.rewards.xml import Xml

_CLASSES: tuple[Any, ...] = (
    Verifier,
    Format,
    Length,
    Exact,
    Fuzzy,
    Choice,
    Json,
    Regex,
    Xml,
    Overlong,
    Cosine,
    Repetition,
    Language,
    CodeTests,
    Environment,
)
PARTS: Mapping[str, type[Any]] = MappingProxyType({one.name: one for one in _CLASSES})
"""Name -> the class, whose fields are the options."""
_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
    dict: "a table",
}


def part_of(name: str, options: Mapping[str, Any]) -> Any:
    """The part with these options: a `Reward[ProblemCase]`, or `CodeTests`, which has to be opened.

    Raises LonghaulError (INPUT) for an unknown part or option, for one that is missing, of another type or makes no
    sense, and for a package that is not installed.
    """
    if name not in PARTS:
        raise _refusal(f"the reward has no built-in part {name!r}: there are {', '.join(PARTS)}", name)
    allowed = options_of(name)
    for option, value in options.items():
        if option not in allowed:
            close = get_close_matches(option, allowed, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise _wrong(name, f"it has no option {option!r}{hint}")
        if isinstance(value, float) and not isfinite(value):
            raise _wrong(name, f"`{option}` is {value}, and must be finite")
    missing = [option for option, one in allowed.items() if is_required(one) and option not in options]
    if missing:
        raise _wrong(name, f"`{missing[0]}` is missing")
    try:
        part = msgspec.convert(dict(options), PARTS[name])
    except ValueError as error:
        raise _wrong(name, str(error)) from error
    return part


def options_of(name: str) -> dict[str, Field[Any]]:
    """Options of a part by name, in order."""
    return {one.name: one for one in fields(PARTS[name])}


def kind_of(name: str, option: str) -> str:
    """What an option takes, in a word or two."""
    kind = get_type_hints(PARTS[name])[option]
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return _KINDS[get_origin(kind) or kind]


def is_required(option: Field[Any]) -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def _wrong(name: str, why: str) -> LonghaulError:
    kinds = [f"{option}: {kind_of(name, option)}" for option in options_of(name)]
    return _refusal(f"the part {name!r} of the reward cannot be used: {why} (its options: {'; '.join(kinds)})", name)


def _refusal(what: str, name: str) -> LonghaulError:
    return LonghaulError(
        what,
        kept="everything; nothing was started",
        next_command=f"correct [grpo.reward.options.{name}] of the profile (docs/rewards.md), then the same command",
        exit_code=ExitCode.INPUT,
    )
