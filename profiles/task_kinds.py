"""Name, title and colours of each kind of task, for profiles and displays. (pure)

`workers/tasks/kinds/` defines what each kind asks and how it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ABDUCTION, DEDUCTION, INDUCTION = "abd", "ded", "ind"
"""Names in profiles, metrics and stored data."""


class Look(NamedTuple):
    title: str
    """Display name."""
    terminal: str
    """Colour on a terminal: a mid-tone, legible on black and on white."""
    light: str
    """Colour of curves in the report, on white."""
    dark: str
    """Colour of curves in the report, on black."""


LOOKS: Mapping[str, Look] = {
    ABDUCTION: Look("abduction", "#b07cff", "#8452d8", "#b592f5"),
    DEDUCTION: Look("deduction", "#3b9eff", "#1f77d0", "#5ba8f5"),
    INDUCTION: Look("induction", "#f0902a", "#d9731a", "#f09a4c"),
}
"""The built-in kinds. Displays show any other kind by its name, without a colour."""

NAMES = tuple(LOOKS)
"""In the order of the cells of a step."""
SHOWN = (DEDUCTION, ABDUCTION, INDUCTION)
"""In the order of screens."""
