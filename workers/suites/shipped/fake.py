"""The durability trainer's held-out set. It asks no model: `workers.fake.trainer` computes scores from its weight."""

from __future__ import annotations

from profiles.suites import SuiteRecord
from profiles.task_kinds import NAMES

SUITE = SuiteRecord(
    about="no questions: the weight of the durability trainer",
    tasks=NAMES,
    workers=("fake",),
    styles=(),
)
