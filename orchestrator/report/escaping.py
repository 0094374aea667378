"""Text that a page may hold: a model's, a person's, a worker's. (pure)"""

from __future__ import annotations

import json
from html import escape

from orchestrator.display.wording import harmless


def text(value: object) -> str:
    """Text for HTML, without controls."""
    return escape(harmless(str(value)))


def embedded(data: object) -> str:
    """JSON that cannot end the element it stands in."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
