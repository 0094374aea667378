"""Whether a task can be answered: its right answer, written as the prompt asks, must parse back unchanged. (pure)"""

from __future__ import annotations

from workers.tasks.entry import Entry
from workers.tasks.kinds.registry import kind_of
from workers.tasks.prompts.style import PromptStyle


def is_answerable(style: PromptStyle, entry: Entry) -> bool:
    """Whether the answer's form can carry the right answer. Text that closes the answer or its fence would be cut
    off."""
    gold = kind_of(entry.task).gold(entry)
    rendered = style.render_answer(entry.task, gold)
    found = style.parse_answer(entry.task, rendered)
    # Spaces around a program are no part of it; literals have none.
    return style.is_well_formed(entry.task, rendered) and found is not None and found.strip() == gold.strip()
