"""The kinds of task by name: the built-in ones, and a profile's own, named as MODULE:NAME."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from profiles.errors import ExitCode, LonghaulError
from workers.tasks.entry import Entry
from workers.tasks.items import Item, Task
from workers.tasks.kinds.abduction import Abduction
from workers.tasks.kinds.deduction import Deduction
from workers.tasks.kinds.induction import Induction
from workers.tasks.kinds.kind import Kind

_KINDS: dict[Task, Kind] = {kind.name: kind for kind in (Abduction(), Deduction(), Induction())}
"""In the order of a step's cells."""


def known() -> tuple[Kind, ...]:
    """All kinds in the order of a step's cells; a profile's own come last."""
    return tuple(_KINDS.values())


def names() -> tuple[Task, ...]:
    return tuple(_KINDS)


def kind_of(task: Task) -> Kind:
    """Raises KeyError for an unknown name."""
    return _KINDS[task]


def item_of(entry: Entry) -> Item:
    """What prompt styles need to know of a task."""
    return kind_of(entry.task).item(entry)


def tasks_of(knob: Sequence[str]) -> tuple[Task, ...]:
    """Names of the kinds in `azr.tasks`, in order. Own kinds are imported, and known from then on.

    Raises LonghaulError (INPUT) if a module is missing, or has no kind of that name.
    """
    return tuple(_own(text).name if ":" in text else text for text in knob)


def _own(text: str) -> Kind:
    module, _, attribute = text.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _unusable(text, str(error)) from error
    if not isinstance(kind, Kind):
        raise _unusable(text, f"{attribute} is not an instance of workers.tasks.kinds.kind.Kind")
    if _KINDS.setdefault(kind.name, kind) is not kind:
        raise _unusable(text, f"a kind named {kind.name!r} already exists")
    return kind


def _unusable(text: str, why: str) -> LonghaulError:
    return LonghaulError(
        f"azr.tasks names {text!r}, which is not a kind of task: {why}",
        kept="the run, as it is",
        next_command=f"python -c 'from {text.replace(':', ' import ')}'   (docs/extending.md says what it must be)",
        exit_code=ExitCode.INPUT,
    )
