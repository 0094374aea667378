"""What a new run knows before it plays: the identity function, as one task of each kind. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from workers.tasks.entry import SEED, Entry, make_entry
from workers.tasks.kinds import Task

IDENTITY = "def f(a):\n    return a"

GENERAL_INPUTS = ("'Hello world'", "1", "{'a': 1, 'b': 2}", "(1.1, 2.2)", "'[[1, 0], [0, 1]]'", "1001101100010001")
POCKET_INPUTS = ("'uvwxy'", "'UVW'", "'yXw'", "'wwUx'")
"""The pocket model's tokenizer knows ten letters."""


def identity_inputs(style: str) -> tuple[str, ...]:
    return POCKET_INPUTS if style == "pocket" else GENERAL_INPUTS


def seed_entries(tasks: Sequence[Task], style: str) -> list[Entry]:
    """One entry for each task, step 0: a triplet of the first input, a problem of all."""
    inputs = identity_inputs(style)
    message = "" if style == "pocket" else "A function that gives back what it was given."
    return [
        make_entry(task, IDENTITY, inputs if task == "ind" else inputs[:1], inputs if task == "ind" else inputs[:1],
                   step=0, source=SEED, message=message if task == "ind" else "")
        for task in tasks
    ]  # fmt: skip
