"""The section [memory]: how much of a GPU a run may take. (pure)"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from profiles.section import FREE, Section


class Memory(Section, frozen=True):
    """[memory]: the GPU's memory. profiles/footprint.py says what a profile needs."""

    cap_gib: Annotated[float, Meta(ge=0), FREE] = 0.0
    """Take no more than a card with so many usable GiB has, context included (8 GB cards: 7.6); 0: all there is."""
