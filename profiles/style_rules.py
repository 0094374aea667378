"""Rules for what a prompt style can express, each returning a Finding or None; none raises. (pure)"""

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
"""Knobs that change how a proposer's prompt or response is worded. The pocket style only has markers."""


def the_pocket_style_is_one_form(p: Profile) -> Finding | None:
    """Otherwise a proposer would be punished for not building on programs that its prompt never showed."""
    if p.run.worker != "azr" or p.model.prompt_style != "pocket":
        return None
    wrong = [name for name in WORDED if value_of(p, name) != knobs()[name].default]
    if not wrong:
        return None
    needed = toml_text(knobs()[wrong[0]].default)
    return Finding(
        (wrong[0], "model.prompt_style", *wrong[1:]),
        f"must be {needed}: the prompt style pocket can only show one task",
    )


RULES = (the_pocket_style_is_one_form,)
