"""Checks of what a prompt style has words for, each returning a Problem or None; none raises. (pure)"""

from __future__ import annotations

from profiles.azr import Azr
from profiles.problem import Problem
from profiles.refusal import shown
from profiles.schema import Profile

WORDED = ("composite_from_step", "references", "hide_input", "program_fence", "lenient_fallbacks", "seed_parse")
"""Knobs of [azr] that change how a proposer is asked or read in words. The pocket style has marks alone."""


def the_pocket_style_is_one_form(p: Profile) -> Problem | None:
    """A proposer that never got the programs to build on would be punished for not building on them."""
    if p.run.worker != "azr" or p.model.prompt_style != "pocket":
        return None
    form = Azr()
    wrong = [knob for knob in WORDED if getattr(p.azr, knob) != getattr(form, knob)]
    if not wrong:
        return None
    return Problem(
        (f"azr.{wrong[0]}", "model.prompt_style", *(f"azr.{knob}" for knob in wrong[1:])),
        f"must be {shown(getattr(form, wrong[0]))}: the prompt style pocket shows one task, and has no words for more",
    )


RULES = (the_pocket_style_is_one_form,)
