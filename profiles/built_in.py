"""The models that ship with the program, by the name that `model.path` and `evaluate --model` know them by. (pure)"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

_POCKET = Path(__file__).parents[1] / "workers" / "pocket"


class BuiltIn(Struct, frozen=True):
    """suite: what it is evaluated on where nothing is named. max_new_tokens: more than its longest answer."""

    directory: Path
    prompt_style: Literal["pocket", "verbatim"]
    suite: str
    max_new_tokens: int


BUILT_IN = {
    "pocket": BuiltIn(_POCKET / "weights", "pocket", "pocket", 128),
    "pocket-words": BuiltIn(_POCKET / "words" / "weights", "verbatim", "words", 40),
}
