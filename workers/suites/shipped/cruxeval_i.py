"""CRUXEval, asking for an input (abduction): the prompt shows the program and its output."""

from __future__ import annotations

from functools import partial

from profiles.suites import PROGRAM_STYLES
from profiles.task_kinds import ABDUCTION
from workers.suites.cruxeval import FILE, questions
from workers.suites.source import Listed

SUITE = Listed(
    about="an input for which a program gives a shown output; right is what does when it is run",
    tasks=(ABDUCTION,),
    workers=("azr",),
    styles=PROGRAM_STYLES,
    file=FILE,
    read=partial(questions, "cruxeval-i", ABDUCTION),
)
