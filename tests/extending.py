"""Examples of docs/extending.md, which tests run as they stand there."""

from __future__ import annotations

import re

from tests import REPOSITORY


def example(heading: str) -> str:
    """The Python file that the section of this heading shows."""
    sections = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8").split("\n## ")
    (section,) = (one for one in sections if one.startswith(f"{heading}\n"))
    (shown,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return shown
