"""Prompt styles by name, and which values each of them can ask about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from profiles.schema import Profile
from workers.models.load import Tokenizer
from workers.tasks.prompts import chat
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.pocket import PocketStyle
from workers.tasks.prompts.style import Form, PromptStyle

POCKET_LETTERS = (1, 9)
"""How many letters an output may have in the pocket style. Nothing can be learnt from an empty one."""


def style_of(profile: Profile, directory: Path) -> PromptStyle:
    """The profile's style, for the model in `directory`.

    Raises LonghaulError (INPUT) if the style needs a chat template and the model has none.
    """
    name = profile.model.prompt_style
    if name == "pocket":
        return PocketStyle()
    azr = profile.azr
    form = Form(
        azr.variants.program_fence,
        azr.variants.seed_parse,
        azr.variants.lenient_fallbacks,
        azr.variants.hide_input,
        profile.sandbox.cpu_s,
    )
    marks = chat.special_tokens(directory)
    if name == "azr-chat":
        return AzrStyle(name, chat.wrapper_of(directory, profile.model.thinking), form, marks)
    return AzrStyle(name, form=form, marks=marks)


def output_rule_of(name: str) -> Callable[[str], bool]:
    """Whether a value may be the output of a task in this style, in addition to the rules for all styles."""
    if name != "pocket":
        return lambda value: True
    low, high = POCKET_LETTERS
    return lambda value: low <= len(value) - 2 <= high and value.startswith("'")


def reading_rule_of(name: str, tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether the model can read a text that it did not write. The pocket model has few words."""
    if name != "pocket":
        return lambda text: True
    return lambda text: tokenizer.decode(tokenizer.encode(text)) == text
