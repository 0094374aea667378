"""The base class of profile sections, and the types that many knobs share. (pure)"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

FIXED = Meta(extra={"change": "fixed"})
FREE = Meta(extra={"change": "free"})

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, and refuses unknown keys. (Type checkers need `frozen` repeated.)"""
