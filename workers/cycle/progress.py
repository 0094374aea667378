"""How far training has come, and what else a resume needs besides the weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct, field

from workers.memory.backoff import Backoff


class Progress(Struct):
    """The counters of a run. Registered: all of it is in every checkpoint."""

    step: int = 0
    """Last completed step."""
    tokens: int = 0
    """Completion tokens trained on."""
    not_finite_in_row: int = 0
    """Consecutive steps whose log-probs, loss or gradients were NaN or infinite."""
    shrinks: int = 0
    """How often a size was halved after the GPU ran out of memory."""
    backoff: Backoff = field(default_factory=Backoff)
    """The resulting sizes. A resume continues with them, because rounding depends on them."""
    reseeds: int = 0
    """How often the buffers were consolidated."""

    filename = "progress.json"

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    def load(self, path: Path) -> None:
        stored = msgspec.json.decode(path.read_bytes(), type=Progress)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(stored, name))
