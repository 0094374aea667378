"""Quantiles of the rewards and lengths of a step, compared with numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.metrics import LENGTHS_AT, QUANTILES, REWARDS_AT, metric_of
from workers.intervals import quantile, spread_of

VALUES = st.lists(st.integers(-1000, 1000).map(lambda n: n / 8), min_size=1, max_size=40)


@given(VALUES, st.sampled_from(QUANTILES))
def test_a_quantile_is_that_of_numpy(values: list[float], percent: int) -> None:
    # Eighths up to 125 times a share: one rounding of the place, one of the product, one of the sum.
    assert quantile(sorted(values), percent / 100) == pytest.approx(np.percentile(values, percent), abs=250 * 2**-50)


def test_a_step_reports_declared_quantiles_in_ascending_order() -> None:
    found = spread_of(REWARDS_AT, [1.0, 0.0, 0.0, 1.0, 0.5])
    assert list(found.values()) == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert {metric_of(name) for name in found} == {REWARDS_AT}
    assert spread_of(LENGTHS_AT, []) == {}


def test_without_values_there_is_no_quantile() -> None:
    with pytest.raises(ValueError, match="without values"):
        quantile([], 0.5)
