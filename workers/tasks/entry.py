"""A verified task with what is known about it, and the keys that identify it. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from workers.sandbox.normalise import example_key, program_key
from workers.tasks.items import Task
from workers.tasks.novelty import Novelty, form_of

SEED = "seed"
BUFFERS_FILE = "buffers.jsonl"
"""Name in a checkpoint of the file with the entries of all buffers."""
UNKNOWN_RATE = -1.0


class Entry(Struct, frozen=True, kw_only=True):
    """One task with what is known about it."""

    task: Task
    program: str
    inputs: tuple[str, ...]
    """Argument lists as source text: one, or several if the task has many pairs."""
    outputs: tuple[str, ...]
    step: int
    source: str
    """`seed`, `selfplay` or `import`."""
    message: str = ""
    solve_rate: float = UNKNOWN_RATE
    """Share of solver rollouts that were right when the task was new."""
    key: str
    """Equal for equal tasks."""
    program_key: str
    form: str = ""
    """Equal for tasks that count as one under `azr.novelty`; empty if that is decided by key or text."""


def make_entry(
    task: Task,
    program: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    step: int,
    source: str,
    message: str = "",
    solve_rate: float = UNKNOWN_RATE,
) -> Entry:
    """An entry with its keys. Raises what `example_key` raises if the text is not a program or not literals."""
    return Entry(
        task=task,
        program=program,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        step=step,
        source=source,
        message=message,
        solve_rate=solve_rate,
        key=example_key(program, list(inputs)),
        program_key=program_key(program),
    )


def with_form(entry: Entry, novelty: Novelty) -> Entry:
    """Adds the form if it is slow to compute, so that a checkpoint holds it; fast ones are recomputed. (pure)"""
    if (novelty == "canonical") == bool(entry.form):
        return entry
    form = form_of(entry.program, entry.inputs, entry.key, novelty) if novelty == "canonical" else ""
    return replace(entry, form=form)


def known_by(entry: Entry, novelty: Novelty) -> str:
    """The identity by which two tasks count as one. (pure)"""
    return with_form(entry, novelty).form or form_of(entry.program, entry.inputs, entry.key, novelty)
