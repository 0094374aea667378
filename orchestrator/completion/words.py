"""What can be typed: commands, their options and what follows each, read from the parsers of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import profiles
from profiles.knobs import knobs


class Kind(StrEnum):
    """What follows an option, or is typed without one."""

    NOTHING = "nothing"
    RUN = "run"
    PROFILE = "profile"
    KNOB = "knob"
    FOLDER = "folder"
    FILE = "file"
    CHOICE = "choice"
    OTHER = "other"
    """A number or a text: no shell can guess it."""


KINDS = {
    "--run": Kind.RUN,
    "--profile": Kind.PROFILE,
    "--set": Kind.KNOB,
    "RUN": Kind.RUN,
    "NAME|FILE": Kind.PROFILE,
    "DIR": Kind.FOLDER,
    "PATH": Kind.FILE,
    "SOURCE": Kind.FILE,
    "LOG": Kind.FILE,
}
"""By option, else by metavar; a metavar that begins with FILE is a file."""
SHIPPED = str(Path(profiles.__file__ or "").parent)
"""The folder of the shipped profiles, in which shells look for names."""


@dataclass(frozen=True)
class Option:
    """names: long and short ones; empty for what is typed without an option. help: for shells that show it."""

    names: tuple[str, ...]
    kind: Kind
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Command:
    name: str
    help: str
    options: tuple[Option, ...]
    typed: tuple[Option, ...]
    """What is typed without an option, in order; more words are of the last kind."""

    @property
    def names(self) -> list[str]:
        """Of all options."""
        return [name for option in self.options for name in option.names]


def commands() -> list[Command]:
    """All commands. Imports each one's module, which takes a second: a script is made once, and asks no Python."""
    from orchestrator.cli import COMMANDS, parser_of

    return [_command(name, text, parser_of(name)[0]) for name, text in COMMANDS.items()]


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> Command:
    found = [_option(action) for action in parser._actions]
    return Command(
        name,
        text,
        tuple(option for option in found if option.names),
        tuple(option for option in found if not option.names),
    )


def _option(action: argparse.Action) -> Option:
    names, metavar = tuple(action.option_strings), str(action.metavar or "")
    choices = tuple(str(choice) for choice in action.choices or ())
    if names and action.nargs == 0:
        kind = Kind.NOTHING
    elif choices:
        kind = Kind.CHOICE
    else:
        known = next((KINDS[name] for name in (*names, metavar) if name in KINDS), None)
        kind = known or (Kind.FILE if metavar.startswith("FILE") else Kind.OTHER)
    return Option(names, kind, choices, " ".join((action.help or "").split()).replace("%%", "%"))


def knob_words() -> list[str]:
    """What may follow `--set`."""
    return [f"{name}=" for name in knobs()]


def by_answer(commands: Iterable[Command]) -> dict[tuple[Kind, tuple[str, ...]], list[tuple[str, str]]]:
    """What follows an option -> (command, option) of each that is followed by it."""
    found: dict[tuple[Kind, tuple[str, ...]], list[tuple[str, str]]] = {}
    for command, option in _options_of(commands):
        if option.kind is not Kind.NOTHING:
            found.setdefault((option.kind, option.choices), []).extend((command, name) for name in option.names)
    return found


def _options_of(commands: Iterable[Command]) -> Iterator[tuple[str, Option]]:
    for command in commands:
        for option in command.options:
            yield command.name, option


def quoted(text: str) -> str:
    """A text in single quotes, for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"
