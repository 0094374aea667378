"""The result of a rule that rejects a profile. (pure)"""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """A sentence about one or more knobs, named `section.key`; the first is the main one."""

    knobs: tuple[str, ...]
    text: str
