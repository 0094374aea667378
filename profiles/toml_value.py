"""Writes a value as TOML, whole and in one line. (pure)"""

from __future__ import annotations

import json
import re
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that needs no quotes."""


def toml_value(value: Any) -> str:
    """value: of the types that profiles have. None of them is null, which TOML has not."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
    return repr(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)
