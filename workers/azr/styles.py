"""Prompt styles by name, and what each of them must never train on."""

from __future__ import annotations

import ast
from collections.abc import Callable

from workers.azr.prompts.pocket import PocketStyle
from workers.azr.prompts.style import PromptStyle
from workers.pocket import language

POCKET_LETTERS = (1, 9)
"""Letters of an output that the pocket model may be asked about: of an empty one nothing can be learnt."""

STYLES: dict[str, Callable[[], PromptStyle]] = {"pocket": PocketStyle}


def style_of(name: str) -> PromptStyle:
    return STYLES[name]()


def output_rule_of(name: str) -> Callable[[str], bool]:
    """Whether a value may be the output of a task in this style, beside what holds for all."""
    if name != "pocket":
        return lambda value: True
    low, high = POCKET_LETTERS
    return lambda value: low <= len(value) - 2 <= high and value.startswith("'")


def held_out_of(name: str) -> Callable[[str], bool]:
    """Whether a program belongs to the style's evaluation: by syntax tree, so that spacing does not hide it."""
    if name != "pocket":
        return lambda program: False
    return lambda program: language.is_held_out(ast.unparse(ast.parse(program)))
