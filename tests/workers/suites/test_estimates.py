"""Intervals and pass@k: hand-worked values, and what must hold for all."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.intervals import pass_at_k, wilson
from workers.suites.scoring import Outcome, metrics_of


@pytest.mark.parametrize(
    ("n", "correct", "k", "expected"),
    [
        pytest.param(1, 1, 1, 1.0, id="one right sample"),
        pytest.param(1, 0, 1, 0.0, id="one wrong sample"),
        pytest.param(4, 1, 1, 0.25, id="k = 1 is the share"),
        pytest.param(4, 1, 2, 0.5, id="of 6 pairs 3 hold the right one"),
        pytest.param(5, 2, 3, 0.9, id="of 10 triples 1 holds none"),
        pytest.param(5, 3, 3, 1.0, id="two wrong ones cannot fill three places"),
        pytest.param(200, 0, 100, 0.0, id="never right"),
    ],
)
def test_pass_at_k(n: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_that_hold_a_right_sample(case: tuple[int, int, int]) -> None:
    n, correct, k = case
    choices = list(combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_the_product_is_equation_1_also_where_binomials_are_large(case: tuple[int, int, int]) -> None:
    n, correct, k = case
    assert pass_at_k(n, correct, k) == pytest.approx(1 - comb(n - correct, k) / comb(n, k), abs=1e-9)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1)])
def test_pass_at_k_of_what_cannot_be_is_refused(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {correct} right among {n}"):
        pass_at_k(n, correct, k)


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        pytest.param(81, 263, 0.2553, 0.3662, id="81 of 263"),
        pytest.param(15, 148, 0.0624, 0.1605, id="15 of 148"),
        pytest.param(0, 20, 0.0, 0.1611, id="0 of 20"),
        pytest.param(1, 29, 0.0061, 0.1718, id="1 of 29"),
    ],
)
def test_wilson_is_the_published_interval(correct: int, n: int, low: float, high: float) -> None:
    assert wilson(correct, n) == pytest.approx((low, high), abs=5e-5)


def one(task: str, *right: bool, tokens: int = 4, malformed: int = 0) -> Outcome:
    return Outcome(f"{task}{right}{tokens}", task, right, (tokens,) * len(right), malformed=malformed)


def test_the_numbers_of_a_greedy_suite_are_those_worked_out_by_hand() -> None:
    metrics = metrics_of(
        [one("ded", True), one("ded", False, malformed=1), one("abd", True, tokens=8)], greedy=True, ks=(1,)
    )
    assert metrics["ded"]["accuracy"] == 0.5 and metrics["abd"]["accuracy"] == 1.0
    assert metrics["ded"]["malformed"] == 0.5 and metrics["abd"]["mean_tokens"] == 8
    # The mean is of the tasks, its interval of all three problems.
    assert metrics["mean"]["accuracy"] == 0.75
    assert (metrics["mean"]["n"], metrics["mean"]["correct"]) == (3, 2)
    assert (metrics["mean"]["low"], metrics["mean"]["high"]) == wilson(2, 3)
    assert not any(name.startswith("pass_at") for name in metrics["mean"])


def test_samples_give_pass_at_k_over_problems_not_over_samples() -> None:
    metrics = metrics_of([one("ded", True, True, False, False), one("ded", False, False, False, False)],
                         greedy=False, ks=(1, 2))  # fmt: skip
    ded = metrics["ded"]
    assert ded["pass_at_1"] == 0.25
    assert ded["pass_at_2"] == pytest.approx((1 - 1 / 6) / 2)
    assert (ded["n"], ded["samples"], ded["correct"]) == (2, 8, 2)
    # Two problems know less than eight samples: the interval is that of half a problem right among two.
    assert (ded["low"], ded["high"]) == wilson(0.5, 2)
    assert "accuracy" not in ded
