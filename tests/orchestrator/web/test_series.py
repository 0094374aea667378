"""Thinned series: whatever the order of reading, a bucket has the minimum, mean and maximum of its steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.web.series import MOST_METRICS, Series, is_number, rounded

VALUES = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=300)


def expected(values: list[float], width: int) -> dict[str, list[float]]:
    parts = [values[start : start + width] for start in range(0, len(values), width)]
    found = {"mean": [rounded(math.fsum(part) / len(part)) for part in parts]}
    if width > 1:
        found |= {"low": [rounded(min(part)) for part in parts], "high": [rounded(max(part)) for part in parts]}
    return found


@given(VALUES, st.lists(st.integers(1, 40), min_size=1))
def test_a_bucket_has_the_minimum_the_mean_and_the_maximum_of_its_steps(values: list[float], pieces: list[int]) -> None:
    series, rows, start = Series(16), [(n, {"x": value}) for n, value in enumerate(values, 1)], 0
    while start < len(rows):
        piece = pieces[start % len(pieces)]
        series.add(rows[start : start + piece])
        start += piece
    found, wanted = series.points(["x"])["x"], expected(values, series.width)
    assert found.keys() == wanted.keys()
    assert all(found[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-4) for name in wanted)


def test_one_spike_among_a_hundred_thousand_steps_stays_visible() -> None:
    series = Series()
    series.add([(n, {"x": 1000.0 if n == 54321 else 1.0}) for n in range(1, 100_001)])
    found = series.points(["x"])["x"]
    assert len(found["mean"]) <= series.most
    assert [n for n, high in enumerate(found["high"]) if high == 1000] == [series.bucket(54321)]


def test_steps_that_do_not_report_a_metric_leave_a_gap_and_do_not_count_as_zero() -> None:
    series = Series(4)
    series.add([(1, {"x": 2}), (2, {}), (3, {"x": None}), (4, {"x": 4})])
    assert series.points(["x"])["x"]["mean"] == [2, None, None, 4]
    series.add([(5, {"x": 6})])
    assert series.width == 2
    assert series.points(["x"])["x"]["mean"] == [2, 4, 6]


def test_replacing_a_bucket_forgets_what_was_sampled_of_it() -> None:
    series = Series(2)
    series.add([(1, {"x": 100.0, "y": 1.0}), (4, {"x": 7.0})])
    series.replace(0, [{"x": 1.0}, {"x": 3.0}])
    assert series.points(["x", "y"]) == {
        "x": {"mean": [2, 7], "low": [1, 7], "high": [3, 7]},
        "y": {"mean": [None, None], "low": [None, None], "high": [None, None]},
    }


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, -math.inf, 10**400, [1], {}])
def test_what_is_no_finite_number_is_never_drawn(value: Any) -> None:
    assert not is_number(value)
    series = Series()
    series.add([(1, {"x": value})])
    assert series.points(["x"]) == {}


def test_a_sum_that_no_number_holds_is_sent_all_the_same() -> None:
    series = Series(2)
    series.add([(step, {"x": 1.5e308, "y": 1.0}) for step in (1, 2, 3)])
    assert series.points(["y"]) == {"y": {"mean": [1, 1], "low": [1, 1], "high": [1, 1]}}
    assert series.points(["x"])["x"]["mean"][0] == math.inf


def test_a_flood_of_names_is_cut() -> None:
    series = Series(2)
    series.add([(1, {f"reward/own/{n}": 1.0 for n in range(2 * MOST_METRICS)})])
    assert len(series.names) == MOST_METRICS
