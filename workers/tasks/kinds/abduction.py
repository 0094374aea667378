"""Abduction: the prompt shows a program and its output; any input that gives this output is right."""

from __future__ import annotations

from profiles.task_kinds import ABDUCTION as NAME
from workers.tasks.kinds.kind import Kind
from workers.tasks.prompts import abduction


class Abduction(Kind):
    name = NAME
    asks = "input"
    english, pocket, plain = abduction.ENGLISH, abduction.POCKET, abduction.PLAIN
    is_original = True
