"""The record of a suite of held-out problems, and how to find one by name.

A shipped suite is `SUITE` in a file of `workers/suites/shipped/` with the suite's name, with `_` for `-`. An external
one is named `module:NAME`. The master reads records too, so their modules must import quickly and load problems late.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from profiles.refusal import nearest

SHIPPED = Path(__file__).parents[1] / "workers" / "suites" / "shipped"
PROGRAM_STYLES = ("azr", "azr-chat")
"""Prompt styles that can express every kind of problem."""
FOR_PROBLEMS = ("verbatim", "chat", "boxed", "boxed-chat")
"""Prompt styles that can only express problems with known answers."""
PROBLEM_STYLES = (*PROGRAM_STYLES, *FOR_PROBLEMS)
"""Prompt styles that can express a word problem."""
_OUTSIDE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)


class SuiteRecord(Struct, frozen=True, kw_only=True):
    """What is known about a suite before its problems are read."""

    about: str
    """A few words about its problems and how answers are judged."""
    tasks: tuple[str, ...]
    """The tasks that its scores are listed by, besides their `mean`."""
    workers: tuple[str, ...]
    """Values of `run.worker` whose runs it can validate."""
    styles: tuple[str, ...]
    """Prompt styles that can express its problems; empty if it uses no model."""
    asks_own_data: bool = False
    """Whether it asks the share of a run's own problems that never trains (`data.held_out`)."""

    @property
    def has_programs(self) -> bool:
        """Whether its problems may contain programs, which self-play must then not train on."""
        return bool(self.styles) and not set(self.styles) & set(FOR_PROBLEMS)


class UnknownSuite(ValueError):
    """No suite has that name; the text says why. near: the most similar name, or empty."""

    def __init__(self, why: str, near: str = "") -> None:
        guess = f"; did you mean {near}?" if near else ""
        known = ", ".join(suites_for_models())
        super().__init__(f"{why}{guess} (there are {known}; or module:NAME for one of your own)")
        self.near = near


def shipped_suites() -> list[str]:
    """Names of the suites that ship with the program."""
    return list(_names_in(SHIPPED))


@cache  # called by every check of a profile; the planner checks hundreds
def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")))


def suites_for_models() -> list[str]:
    """The shipped suites that use a model."""
    return [name for name in shipped_suites() if record_of(name).styles]


def record_of(name: str) -> SuiteRecord:
    """The record of a suite. Raises UnknownSuite if the name leads to none."""
    if name in shipped_suites():
        module, attribute = f"workers.suites.shipped.{name.replace('-', '_')}", "SUITE"
    elif outside := _OUTSIDE.fullmatch(name):
        module, attribute = outside.groups()
    else:
        raise UnknownSuite(f"there is no suite {name!r}", nearest(name, shipped_suites()))
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception as error:  # an external module may raise anything
        raise UnknownSuite(
            f"the module of the suite {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, SuiteRecord):
        raise UnknownSuite(f"the module {module} has no suite {attribute!r}")
    return found
