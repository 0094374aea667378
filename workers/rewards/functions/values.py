"""What a function may return: finite numbers. True is 1. Everything else is refused in words. (pure)"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from workers.user_code.errors import BadReturn

MOST_PARTS = 20
LONGEST_NAME = 64


class NoReward(BadReturn):
    """What a function returned is no reward."""


def of_one(name: str, returned: Any) -> dict[str, float]:
    """The named values of a rollout: the function's own is the reward. A dict of parts counts as its sum, and each part
    is also there as `NAME/PART`.

    Raises NoReward for anything else.
    """
    if not isinstance(returned, Mapping):
        return {name: number(returned)}
    if not 0 < len(returned) <= MOST_PARTS:
        raise NoReward(f"it returned a dict of {len(returned)} parts; 1 to {MOST_PARTS} are possible")
    parts = {_part(name, key): number(value, f" for {str(key)[:LONGEST_NAME]!r}") for key, value in returned.items()}
    return {name: sum(parts.values()), **parts}


def of_group(name: str, returned: Any, count: int) -> list[dict[str, float] | str]:
    """The same for each of `count` rollouts, or why it has none. None is 0: the function does not apply.

    Raises NoReward if there is not one value for each.
    """
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise NoReward(f"it returned {shown(returned)}; a list with a number for each completion was expected")
    values = list(returned)
    if len(values) != count:
        raise NoReward(f"it returned {len(values)} rewards for {count} completions")
    results: list[dict[str, float] | str] = []
    for at, value in enumerate(values, start=1):
        try:
            results.append({name: 0.0 if value is None else number(value, f" for completion {at} of {count}")})
        except NoReward as error:
            results.append(str(error))
    return results


def number(value: Any, where: str = "") -> float:
    """A finite float. NumPy's scalars and tensors of one number are numbers too. Raises NoReward."""
    if isinstance(value, str | bytes) or not hasattr(type(value), "__float__"):
        raise NoReward(f"it returned {shown(value)}{where}, not a number")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise NoReward(f"it returned {shown(value)}{where}, which is no number: {error}"[:300]) from error
    if not math.isfinite(found):
        raise NoReward(f"it returned {found}{where}; a reward must be finite")
    return found


def shown(value: Any) -> str:
    """A short repr, with the type where that is not plain."""
    if value is None:
        return "None"
    try:
        text = repr(value)
    except BaseException:  # its own __repr__ may raise
        text = "?"
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"


def _part(name: str, key: Any) -> str:
    if not isinstance(key, str) or not key.isprintable() or not 0 < len(key) <= LONGEST_NAME:
        raise NoReward(f"it returned a dict with the key {shown(key)}; a part needs a short name")
    return f"{name}/{key}"
