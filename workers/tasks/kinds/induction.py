"""Induction: the prompt shows some pairs of a hidden program; a program is right if it holds on the other pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from profiles.task_kinds import INDUCTION as NAME
from workers.sandbox.screen import screen
from workers.tasks.entry import Entry
from workers.tasks.items import HiddenProgram
from workers.tasks.kinds.kind import Kind
from workers.tasks.pairs import hides_a_shown_input
from workers.tasks.prompts import induction

HIDDEN_SHOWN = "hidden_shown"
"""A hidden input is also a shown one, so a lookup table of the shown pairs would pass."""


class Induction(Kind):
    name = NAME
    asks = "program"
    english, pocket, plain = induction.ENGLISH, induction.POCKET, induction.PLAIN
    writes_program = False
    many_pairs = True
    is_original = True
    reasons: ClassVar = {HIDDEN_SHOWN: "a hidden input of an induction task is among those that its prompt shows"}

    def item(self, entry: Entry) -> HiddenProgram:
        return HiddenProgram(entry.program, entry.inputs, entry.outputs, entry.message, entry.step, entry.source)

    def seed(self, inputs: Sequence[str], message: str) -> tuple[Sequence[str], str]:
        return inputs, message

    def why_unsound(self, program: str, inputs: Sequence[str], num_shown: int | None) -> str:
        return HIDDEN_SHOWN if hides_a_shown_input(program, inputs, num_shown) else ""

    def calls(self, entry: Entry, answer: str, num_shown: int) -> list[tuple[str, str]]:
        return [] if screen(answer) else [(answer, text) for text in entry.inputs[num_shown:]]

    def expected(self, entry: Entry, num_shown: int) -> Sequence[str]:
        return entry.outputs[num_shown:]
