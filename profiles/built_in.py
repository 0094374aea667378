"""The built-in models, by their name in `model.path` and `evaluate --model`. (pure)"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

_POCKET = Path(__file__).parents[1] / "workers" / "pocket"


class BuiltIn(Struct, frozen=True):
    """suite: default suite for evaluation. max_new_tokens: more than the model's longest answer."""

    directory: Path
    prompt_style: Literal["pocket", "verbatim"]
    suite: str
    max_new_tokens: int


BUILT_IN = {
    "pocket": BuiltIn(_POCKET / "weights", "pocket", "pocket", 128),
    # Both names of word problems, of the model and of its suite, stay: runs keep them in profiles and validations.
    "pocket-words": BuiltIn(_POCKET / "word_problems" / "weights", "verbatim", "words", 40),
}
