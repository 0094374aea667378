"""A kind of task of one's own, whole in this file: which letter does the output end with? A test trains on it."""

from __future__ import annotations

from workers.tasks.entry import Entry
from workers.tasks.kinds.kind import Kind
from workers.tasks.prompts import marks
from workers.tasks.prompts.style import Form


class _Words(marks.OnePair):
    """The pocket model was not pretrained on it: it is asked as for the output, and its last letter counts."""

    def answer(self, text: str, form: Form) -> str | None:
        found = super().answer(text, form)
        return repr(found[1:-1][-1:]) if found is not None else None


class LastLetter(Kind):
    name = "end"
    asks = "output"
    pocket = _Words(asked="<pded>{program}<in>{input}<sep>", question="<ded>{program}<in>{input}<out>")

    def gold(self, entry: Entry) -> str:
        return repr(entry.outputs[0][1:-1][-1:])


LAST_LETTER = LastLetter()
