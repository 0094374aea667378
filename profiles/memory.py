"""The section [memory]: how much GPU memory a run may use, and what happens if it is too little. (pure)"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.section import FREE, Section


class Memory(Section, frozen=True):
    """[memory]: the GPU's memory. docs/memory.md says what a profile needs, and how that is computed."""

    cap_gib: Annotated[float, Meta(ge=0), FREE] = 0.0
    """Use no more memory than a card with this many usable GiB has, context included (8 GB cards: 7.6); 0: no cap."""
    on_small_card: Annotated[Literal["refuse", "warn"], FREE] = "refuse"
    """If the GPU has less memory than the plan needs: refuse to start, or warn and start regardless."""
