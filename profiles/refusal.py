"""How a refused profile is told: one line a problem, and what to do next. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError

OVERRIDE = "--set"


class Refused(Struct, frozen=True):
    """One line of a refusal: which knob, what about it, and where it stands."""

    place: str
    text: str
    origin: str


def refusal(name: str, problems: Iterable[Refused]) -> LonghaulError:
    """All problems of the profile `name` as the one error that is raised."""
    told = list(dict.fromkeys(problems))
    width = min(max(len(line.place) for line in told), 48)
    lines = [f"  {t.place:<{width}}  {t.text}  ({t.origin})" for t in told]
    count = "1 problem" if len(told) == 1 else f"{len(told)} problems"
    wrong = sorted({t.origin.split(":")[0] for t in told})
    return input_error(
        "\n".join([f"profile {name!r} has {count}", *lines]),
        f"correct {', '.join(wrong)} (docs/profiles.md lists every knob) and type the same command again",
    )


def input_error(what: str, next_command: str) -> LonghaulError:
    """A profile that cannot be used."""
    return LonghaulError(what, kept="nothing was started", next_command=next_command, exit_code=ExitCode.INPUT)


def place(section: str, key: str) -> str:
    """A knob as it stands in a file."""
    return f"[{section}] {key}" if section else key


def toml_text(value: Any) -> str:
    """A value in TOML's spelling, near enough, and never longer than a line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(toml_text(item) for item in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant; empty if none is near."""
    import difflib  # only a refusal needs it

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), "")


def line_of(text: str, section: str, key: str) -> int:
    """Line of a key, counted from 1; 0 where it is written in a way that this simple look does not see."""
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
