"""Builds the error for a refused profile: one line per problem, and what to do next. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError

OVERRIDE = "--set"


class Refused(Struct, frozen=True):
    """One line of a refusal: the knob, the problem, and its file and line."""

    place: str
    text: str
    origin: str


def refusal(name: str, problems: Iterable[Refused]) -> LonghaulError:
    """One error for all problems of the profile `name`."""
    distinct = list(dict.fromkeys(problems))
    width = min(max(len(line.place) for line in distinct), 48)
    lines = [f"  {t.place:<{width}}  {t.text}  ({t.origin})" for t in distinct]
    count = "1 problem" if len(distinct) == 1 else f"{len(distinct)} problems"
    wrong = sorted({t.origin.split(":")[0] for t in distinct})
    return input_error(
        "\n".join([f"profile {name!r} has {count}", *lines]),
        f"correct {', '.join(wrong)} (docs/profiles.md lists every knob) and type the same command again",
    )


def input_error(what: str, next_command: str) -> LonghaulError:
    """The error for a profile that cannot be used."""
    return LonghaulError(what, kept="nothing was started", next_command=next_command, exit_code=ExitCode.INPUT)


def place(section: str, key: str) -> str:
    """A knob as written in a file."""
    return f"[{section}] {key}" if section else key


def toml_text(value: Any) -> str:
    """A value in approximate TOML syntax, cut to 60 characters."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(toml_text(item) for item in value) + "]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key} = {toml_text(item)}" for key, item in value.items()) + "}"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most similar to `word`; empty if none is similar."""
    import difflib  # only a refusal needs it

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), "")


def line_of(text: str, section: str, key: str) -> int:
    """Line number of a key, from 1; 0 if this simple search does not find it."""
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            current = stripped.strip("[] ").split("]")[0].strip()
            if not section and current == key:
                return number
        elif current == section and stripped.partition("=")[0].strip().strip("\"'") == key:
            return number
    return 0
