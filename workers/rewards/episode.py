"""An episode with an environment, as a rollout that says what it earned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.rollout.engine import Rollout

Message = Mapping[str, Any]
"""role and content, as in a chat."""


@dataclass(frozen=True, slots=True)
class Played(Rollout):
    """An episode. Its last reply is what other parts of the reward judge."""

    earned: float = 0.0
    """The sum of the rewards of its steps."""
    reply: str = ""
    """The text of the last reply."""
    messages: tuple[Message, ...] = ()
    """All messages after the prompt, replies included."""
    turns: int = 0
    """Replies."""
    failure: str = ""
    """Why the environment could not play it to the end; empty: it could."""
