"""The table of metrics: one meaning for each name, and nobody reads what is not in it."""

from __future__ import annotations

import pytest

from orchestrator.rehearsal import SHOWN
from orchestrator.report.page import GRPO_CHARTS
from profiles.metrics import METRICS, metric_of, reference
from profiles.worker_kinds import KINDS
from tests import REPOSITORY


def test_every_metric_has_one_name_a_unit_and_a_meaning() -> None:
    assert len({one.name for one in METRICS}) == len(METRICS)
    assert all(one.unit and one.meaning for one in METRICS)


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("loss", "loss"),
        ("reward/solve_abd", "reward/ROLE_TASK"),
        ("reward/correct", "reward/correct"),
        ("memory/train/allocated", "memory/PHASE/allocated"),
        ("seconds/validate_proposals", "seconds/STAGE"),
        ("invalid/held_out", "invalid/REASON"),
    ],
)
def test_a_reported_name_is_found_in_its_family(name: str, declared: str) -> None:
    assert metric_of(name).name == declared


@pytest.mark.parametrize("name", ["lost", "reward/judge_abd", "memory/train", "buffer/", "reward/solve_abd/x"])
def test_a_name_that_is_not_declared_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=r"is no metric of profiles/metrics\.py"):
        metric_of(name)


def test_screens_and_reports_read_only_declared_metrics() -> None:
    read = {name for kind in KINDS.values() for name in (*kind.signals, *kind.rollout_signals, *kind.idle)}
    read |= {name for _, names in GRPO_CHARTS.values() for name in names} | set(SHOWN)
    for name in read:
        metric_of(name)


def test_the_document_is_what_the_table_says() -> None:
    written = (REPOSITORY / "docs/metrics.md").read_text(encoding="utf-8")
    assert written == reference(), "run: .venv/bin/python -m profiles.metrics > docs/metrics.md"
