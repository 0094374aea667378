"""What the pocket model was pretrained to do: three kinds of task, to solve and to propose. (pure)

These are facts of its weights: a kind that comes later has marks and corpus of its own only after a new pretraining.
"""

from profiles.task_kinds import ABDUCTION, DEDUCTION, INDUCTION

ASKED = (DEDUCTION, ABDUCTION, INDUCTION)
"""In the order of the corpus."""
CELLS = (*ASKED, *(f"p{task}" for task in ASKED))
"""To solve each of them, then to propose for each of them."""
