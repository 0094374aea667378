"""What a new run starts self-play from: the identity function, as one task of each kind. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from workers.tasks.entry import SEED, Entry, make_entry
from workers.tasks.items import Task
from workers.tasks.kinds.registry import kind_of

IDENTITY = "def f(a):\n    return a"

GENERAL_INPUTS = ("'Hello world'", "1", "{'a': 1, 'b': 2}", "(1.1, 2.2)", "'[[1, 0], [0, 1]]'", "1001101100010001")
POCKET_INPUTS = ("'uvwxy'", "'UVW'", "'yXw'", "'wwUx'")
"""For the pocket model, whose tokenizer knows ten letters."""


def identity_inputs(style: str) -> tuple[str, ...]:
    return POCKET_INPUTS if style == "pocket" else GENERAL_INPUTS


def seed_entries(tasks: Sequence[Task], style: str) -> list[Entry]:
    """One entry per task, step 0, with the first input or with all, as its kind requires."""
    inputs = identity_inputs(style)
    message = "" if style == "pocket" else "A function that gives back what it was given."
    taken = ((task, *kind_of(task).seed(inputs, message)) for task in tasks)
    return [make_entry(task, IDENTITY, own, own, step=0, source=SEED, message=text) for task, own, text in taken]
