"""Rows A1 to A7 of the algorithm's checklist, and the baseline by groups."""

from __future__ import annotations

import pytest

from workers.azr.advantages import cell_advantages, group_advantages


def one_cell(rewards: list[float], **knobs: object) -> list[float]:
    return cell_advantages([0] * len(rewards), rewards, **knobs).values  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        pytest.param([1, 1, -0.5, -1], [0.8489, 0.8489, -0.6063, -1.0914], id="A1"),
        pytest.param([0.875, 0.5, -0.5, -1], [1.0437, 0.6118, -0.5399, -1.1157], id="A2"),
        pytest.param([1, -0.5], [0.7071, -0.7071], id="A3 sample"),
        pytest.param([1] + [-0.5] * 7, [2.4749] + [-0.3536] * 7, id="A5"),
        pytest.param([0.5, 0.5, 0.5], [0, 0, 0], id="A6 equal"),
        pytest.param([0.7], [0], id="A6 alone"),
    ],
)
def test_whitening_over_samples(rewards: list[float], expected: list[float]) -> None:
    assert one_cell(rewards) == pytest.approx(expected, abs=5e-5)


def test_a3_a4_whitening_over_tokens_weighs_by_length() -> None:
    assert one_cell([1, -0.5], lengths=[100, 300], norm="token") == pytest.approx([1.7299, -0.5766], abs=5e-5)
    expected = [0.9679, 0.9679, -0.6913, -1.2444]
    assert one_cell([1, 1, -0.5, -1], lengths=[10] * 4, norm="token") == pytest.approx(expected, abs=5e-5)


def test_a6_a_cell_without_differences_is_counted() -> None:
    assert cell_advantages(["x", "x", "y", "y"], [1, 1, 1, -1]).degenerate == 1


def test_a7_cells_are_never_pooled() -> None:
    values = cell_advantages(["x", "x", "y", "y"], [1, 1, 1, -0.5]).values
    assert values == pytest.approx([0, 0, 0.7071, -0.7071], abs=5e-5)


def test_a_group_is_compared_with_itself_and_scaled_by_its_cell() -> None:
    # Baselines 0.25 and -0.5; deviations 0.75, -0.75, 0, 0; std with ddof 1 over the cell: sqrt(1.125 / 3).
    values = group_advantages(["c"] * 4, [0, 0, 1, 1], [1, -0.5, -0.5, -0.5]).values
    assert values == pytest.approx([1.224745, -1.224745, 0, 0], abs=1e-6)


def test_a_group_of_one_is_compared_with_its_cell() -> None:
    assert group_advantages(["c"] * 2, [0, 1], [1, 0]).values == pytest.approx([0.7071, -0.7071], abs=5e-5)


def test_arguments_are_not_changed() -> None:
    rewards = [1.0, -0.5]
    group_advantages(["c", "c"], [0, 0], rewards)
    assert rewards == [1.0, -0.5]
