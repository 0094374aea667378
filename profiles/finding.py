"""What a rule finds wrong with a profile. (pure)"""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """A sentence about one or more knobs, `section.key`; the first is the one to look at."""

    knobs: tuple[str, ...]
    text: str
