"""Escapes untrusted text and data for HTML. (pure)"""

from __future__ import annotations

import json
from html import escape

from orchestrator.display.wording import harmless


def text(value: object) -> str:
    """`value` as HTML text without control characters."""
    return escape(harmless(str(value)))


def embedded(data: object) -> str:
    """`data` as JSON that cannot end the element that contains it."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
