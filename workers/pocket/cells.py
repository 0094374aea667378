"""What the pocket model was pretrained on: solving and proposing three kinds of task. (pure)

This is fixed by the weights: a new kind gets its own special tokens and corpus only with a new pretraining.
"""

from profiles.task_kinds import ABDUCTION, DEDUCTION, INDUCTION

ASKED = (DEDUCTION, ABDUCTION, INDUCTION)
"""Kinds of task, in corpus order."""
CELLS = (*ASKED, *(f"p{task}" for task in ASKED))
"""Solving each kind, then proposing each kind."""
