"""Chooses the ratio's old log-probs: the engine's while they agree with the trainer's, otherwise the trainer's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from profiles.mismatch import ROUNDED
from profiles.passes import has_older_tokens
from profiles.schema import Profile
from workers.rollout.select import tis_cap_of

FAR_OFF = 2.0
"""Nats: bound for a single token; for the mean over a step's tokens, the bound of the 16-bit warning applies."""


def old_source_of(profile: Profile) -> str:
    """`trainer` if the engine's log-probs may differ from the trainer's; else `rollout`. (pure)"""
    wanted = profile.grpo.old_source
    if wanted != "auto":
        return wanted
    return "trainer" if tis_cap_of(profile) > 0 or has_older_tokens(profile) else "rollout"


def is_far_off(mean: float, largest: float) -> bool:
    """Whether an engine's log-probs cannot replace the trainer's. mean, largest: in nats, before any update. (pure)"""
    return mean > ROUNDED.warn or largest > FAR_OFF


class OldSource:
    """The profile's choice, until an engine is found far off. Registered: that engine is never trusted again."""

    filename = "old_source.json"

    def __init__(self, profile: Profile) -> None:
        self._wanted = old_source_of(profile)
        self.is_distrusted = False

    @property
    def now(self) -> str:
        return "trainer" if self.is_distrusted else self._wanted

    def look(self, mean: float, largest: float) -> None:
        """Check the differences in a step's first update, whose weights are still those that drew the rollouts."""
        self.is_distrusted |= self.now == "rollout" and is_far_off(mean, largest)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode({"is_distrusted": self.is_distrusted}))

    def load(self, path: Path) -> None:
        self.is_distrusted = msgspec.json.decode(path.read_bytes())["is_distrusted"]
