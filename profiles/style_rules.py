"""Checks of what a prompt style has words for, each returning a Finding or None; none raises. (pure)"""

from __future__ import annotations

from profiles.finding import Finding
from profiles.knobs import knobs, value_of
from profiles.refusal import toml_text
from profiles.schema import Profile

WORDED = (
    "azr.references",
    *(
        f"azr.variants.{key}"
        for key in (
            "composite_from_step",
            "hide_input",
            "program_fence",
            "lenient_fallbacks",
            "seed_parse",
        )
    ),
)
"""Knobs that change how a proposer is asked or read in words. The pocket style has marks alone."""


def the_pocket_style_is_one_form(p: Profile) -> Finding | None:
    """A proposer that never got the programs to build on would be punished for not building on them."""
    if p.run.worker != "azr" or p.model.prompt_style != "pocket":
        return None
    wrong = [name for name in WORDED if value_of(p, name) != knobs()[name].default]
    if not wrong:
        return None
    needed = toml_text(knobs()[wrong[0]].default)
    return Finding(
        (wrong[0], "model.prompt_style", *wrong[1:]),
        f"must be {needed}: the prompt style pocket shows one task, and has no words for more",
    )


RULES = (the_pocket_style_is_one_form,)
