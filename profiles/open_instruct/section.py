"""[open_instruct]: training by open-instruct, from a checkout of it (`run.worker = "open_instruct"`). (pure)"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from profiles.open_instruct.options import UPSTREAM_COMMIT
from profiles.section import FIXED, FREE, Seconds, Section


class OpenInstruct(Section, frozen=True):
    """[open_instruct]: where open-instruct is, and the YAML that it trains by. Model, data, batch, lengths and learning
    rate are in that YAML alone (docs/open-instruct.md)."""

    source: Annotated[str, FREE] = ""
    """A git checkout of open-instruct, on a file system that all hosts share."""
    commit: Annotated[str, Meta(pattern="^[0-9a-f]{40}$"), FIXED] = UPSTREAM_COMMIT
    """Commit that the checkout must be at. Options and log lines are known of the default only."""
    python: Annotated[str, FREE] = ""
    """Interpreter with everything that open-instruct imports; empty: `.venv/bin/python` of the checkout."""
    guide: str = ""
    """The YAML, as `plan --import` corrects it."""
    stop_within_s: Annotated[Seconds, FREE] = 3600.0
    """How long a stop waits for the next checkpoint, since open-instruct writes none when asked. Then it ends, and the
    steps since the last one are repeated."""
