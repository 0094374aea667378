"""A section of a profile from its knobs, wherever they lie in it: tests name a variant as they name any other knob."""

from __future__ import annotations

from typing import Any, TypeVar

from profiles.azr import Azr
from profiles.grpo import Grpo

S = TypeVar("S", Azr, Grpo)


def with_variants(section: type[S], **knobs: Any) -> S:
    """`section` with these knobs; those of its `variants` go there."""
    variants = type(section().variants)
    inner = {key: knobs.pop(key) for key in set(knobs) & set(variants.__struct_fields__)}
    return section(**knobs, variants=variants(**inner))
