"""Deduction: the prompt shows a program and its input; the output is right if it is the same literal."""

from __future__ import annotations

from profiles.task_kinds import DEDUCTION as NAME
from workers.tasks.kinds.kind import Kind
from workers.tasks.prompts import deduction


class Deduction(Kind):
    name = NAME
    asks = "output"
    english, pocket, plain = deduction.ENGLISH, deduction.POCKET, deduction.PLAIN
    is_original = True
