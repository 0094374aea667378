"""CRUXEval, asking for the output (deduction): the prompt shows the program and its input."""

from __future__ import annotations

from functools import partial

from profiles.suites import PROGRAM_STYLES
from profiles.task_kinds import DEDUCTION
from workers.suites.cruxeval import FILE, questions
from workers.suites.source import Listed

SUITE = Listed(
    about="the output of a program for a shown input; right is an equal Python literal",
    tasks=(DEDUCTION,),
    workers=("azr",),
    styles=PROGRAM_STYLES,
    file=FILE,
    read=partial(questions, "cruxeval-o", DEDUCTION),
)
