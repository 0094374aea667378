"""When two tasks count as the same, so that the second earns nothing: `azr.novelty`. (pure)"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from workers.tasks import pairs
from workers.tasks.closures import Definitions

Novelty = Literal["canonical", "tree", "text"]


def form_of(program: str, inputs: Sequence[str], key: str, novelty: Novelty) -> str:
    """Equal for tasks that count as the same.

    key: the task's own, equal for equal syntax trees and arguments. Raises SyntaxError or ValueError if `program` has
    no syntax tree.
    """
    if novelty == "tree":
        return key
    if novelty == "text":
        return _digest(program, *inputs)
    function = _function(program)
    return _digest(function, *sorted(pairs.bound_text(program, text) for text in inputs)) if function else key


@lru_cache(maxsize=4096)
def _function(program: str) -> str:
    """The held-out check's key of `f`, which ignores names and statements without effect."""
    return next((found.digest.hex() for found in Definitions(program).entry_keys()), "")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
