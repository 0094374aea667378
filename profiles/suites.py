"""What a profile must know of a suite of held-out problems, and how a suite is found by its name.

A suite is a record. One that ships is `SUITE` in a file of `workers/suites/shipped/` that is named as the suite is,
with `_` for `-`. One from outside is named `module:NAME`. The master reads records too, so their modules import nothing
that takes time before a question is asked for.
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
"""Prompt styles that have words for every kind of question."""
FOR_PROBLEMS = ("verbatim", "boxed", "boxed-chat")
"""Prompt styles that have words for problems with known answers alone."""
PROBLEM_STYLES = (*PROGRAM_STYLES, *FOR_PROBLEMS)
"""Prompt styles that can ask a word problem."""
_OUTSIDE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)


class SuiteRecord(Struct, frozen=True, kw_only=True):
    """What is known of a suite before a question of it is read."""

    about: str
    """What it asks and what is right, in a few words."""
    tasks: tuple[str, ...]
    """What its scores are listed under, beside `mean` over them."""
    workers: tuple[str, ...]
    """Kinds of worker whose runs it may validate, as `run.worker` names them."""
    styles: tuple[str, ...]
    """Prompt styles that have words for its questions; none where no model is asked."""

    @property
    def has_programs(self) -> bool:
        """Whether its questions may be about programs, which self-play then must not find."""
        return bool(self.styles) and not set(self.styles) & set(FOR_PROBLEMS)


class UnknownSuite(ValueError):
    """No suite has that name. Its text says why; near: the name that was probably meant, or empty."""

    def __init__(self, why: str, near: str = "") -> None:
        guess = f"; did you mean {near}?" if near else ""
        known = ", ".join(suites_for_models())
        super().__init__(f"{why}{guess} (there are {known}; or module:NAME for one of your own)")
        self.near = near


def shipped_suites() -> list[str]:
    """Names of the suites that come with the program."""
    return list(_names_in(SHIPPED))


@cache  # every check of a profile asks, and the planner checks hundreds
def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")))


def suites_for_models() -> list[str]:
    """Those of them that ask a model something."""
    return [name for name in shipped_suites() if record_of(name).styles]


def record_of(name: str) -> SuiteRecord:
    """The record of a suite. Raises UnknownSuite where the name leads to none."""
    if name in shipped_suites():
        module, attribute = f"workers.suites.shipped.{name.replace('-', '_')}", "SUITE"
    elif outside := _OUTSIDE.fullmatch(name):
        module, attribute = outside.groups()
    else:
        raise UnknownSuite(f"there is no suite {name!r}", nearest(name, shipped_suites()))
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception as error:  # what a module from outside raises when it is imported
        raise UnknownSuite(
            f"the module of the suite {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, SuiteRecord):
        raise UnknownSuite(f"the module {module} has no suite {attribute!r}")
    return found
