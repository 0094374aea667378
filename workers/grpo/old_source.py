"""Which log-probs the ratio refers to: the engine's, while they can be taken for the trainer's, else the trainer's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from profiles.mismatch import ROUNDED
from profiles.schema import Profile
from workers.rollout.select import tis_cap_of

FAR_OFF = 2.0
"""Nats, of one token; of the mean over a step's tokens, the bound that a warning has in 16 bits."""


def old_source_of(profile: Profile) -> str:
    """`trainer` where the engine's numbers are not those that the trainer would compute; else `rollout`. (pure)"""
    wanted = profile.grpo.old_source
    if wanted != "auto":
        return wanted
    return "trainer" if tis_cap_of(profile) > 0 else "rollout"


def is_far_off(mean: float, largest: float) -> bool:
    """Whether an engine's log-probs cannot be taken for the trainer's: nats, before any update. (pure)"""
    return mean > ROUNDED.warn or largest > FAR_OFF


class OldSource:
    """The profile's choice, until an engine is found far off. Registered: from then on it is never trusted again."""

    filename = "old_source.json"

    def __init__(self, profile: Profile) -> None:
        self._wanted = old_source_of(profile)
        self.is_distrusted = False

    @property
    def now(self) -> str:
        return "trainer" if self.is_distrusted else self._wanted

    def look(self, mean: float, largest: float) -> None:
        """At the differences of a step's first update, which has the weights that the rollouts were drawn with."""
        self.is_distrusted |= self.now == "rollout" and is_far_off(mean, largest)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode({"is_distrusted": self.is_distrusted}))

    def load(self, path: Path) -> None:
        self.is_distrusted = msgspec.json.decode(path.read_bytes())["is_distrusted"]
