"""Checks across the knobs of [data], each returning a Finding or None; none raises. (pure)"""

from __future__ import annotations

from profiles.finding import Finding
from profiles.schema import Profile


def sources_fill_buffers(p: Profile) -> Finding | None:
    if not p.data.sources or (p.run.worker == "azr" and not p.data.tasks):
        return None
    return Finding(
        ("data.sources", "data.tasks", "run.worker"),
        "fills the buffers of self-play: it needs the worker azr, and no finite source of tasks (data.tasks)",
    )


RULES = (sources_fill_buffers,)
