"""The files of an import: as they were looked at (golden/), and what none of them may have."""

from __future__ import annotations

import re

import pytest

from orchestrator.job_time import JobTime
from orchestrator.open_instruct.render import corrected_yaml, stops
from tests.orchestrator.open_instruct.bundles import GOLDEN, GUIDE, PRODUCTION, bundles, reading

FORBIDDEN = re.compile(r"set -e|0\.0\.0\.0|/home/|/projects/|:\d{4,5}\b|NCCL_IGNORE_DUPLICATE_GPU")
"""Ends a script before it can tell; listens everywhere; somebody's folder; a fixed port; a patched library."""


@pytest.mark.parametrize(("name", "found"), list(bundles()), ids=lambda one: one if isinstance(one, str) else "")
def test_a_corrected_yaml_is_as_it_was_looked_at(name: str, found: object) -> None:
    text = corrected_yaml(found, "guide.yaml")  # type: ignore[arg-type]
    assert text == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert not FORBIDDEN.search(text)


def test_a_changed_line_says_what_was_there_and_which_finding_changed_it() -> None:
    lines = corrected_yaml(reading(GUIDE), "guide.yaml").splitlines()
    assert "num_learners_per_node: [4, 4, 4, 4]   # was [1]: learners" in lines
    assert "gather_whole_model: false   # was not there: whole gather" in lines
    assert "vllm_tensor_parallel_size: 2" in lines


def test_where_it_can_stop_is_said_in_steps_and_minutes_with_the_work_that_a_crash_costs() -> None:
    timed = reading(GUIDE | PRODUCTION, hosts=16, time=JobTime(86_400, 1200, 120, 190))
    often = "20 steps, 63 min"
    assert stops(timed) == f"it can stop every {often}, at its own checkpoints; lost work at most: {often}"
    assert stops(reading(GUIDE)).endswith("lost work at most: 5 steps")
