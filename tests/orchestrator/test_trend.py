"""Trends between cycles that answered the same problems."""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.trend import Stratum, panel_of, trend_of
from state.history import AnswerBits, CycleFacts, ValidationFacts
from state.states import CycleState


def cycle(number: int, **answers: AnswerBits) -> CycleFacts:
    score = ValidationFacts(number, number, "pocket", 0.0, 0, 0, answers=answers)
    return CycleFacts(number, "train", CycleState.VALIDATED, 0, 0, validations=(score,))


def test_a_trend_by_hand() -> None:
    """Problem a turns right at cycle 3, b at cycle 2: the slope of each is 1/2. No spread, so the error is that of
    one more problem that turns at the worst moment: a contrast of 1/2, over two problems."""
    cycles = [cycle(n + 1, ded=AnswerBits(("a", "b"), greedy)) for n, greedy in enumerate((0b00, 0b10, 0b11))]
    trend = trend_of(cycles)
    assert (trend.slope, trend.error, trend.num_problems) == (0.5, 0.25, 2)


@given(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=7, max_size=7), min_size=3, max_size=6))
def test_the_error_is_that_of_the_problems_own_contrasts(answers: list[list[tuple[bool, bool]]]) -> None:
    count = 7
    rows = tuple(
        sum(greedy << n | sampled << (n + count) for n, (greedy, sampled) in enumerate(row)) for row in answers
    )
    middle = (len(rows) - 1) / 2
    weights = [n - middle for n in range(len(rows))]
    own = [
        sum(weight * (row[n][0] + row[n][1]) / 2 for weight, row in zip(weights, answers, strict=True))
        for n in range(count)
    ]
    worst = max(map(abs, accumulate(weights)))
    expected = (sum((one - fmean(own)) ** 2 for one in own) + worst**2) / count**2
    found = Stratum(1.0, count, 2, rows)
    # Some 100 additions of numbers below 100, each rounded to within 2**-53 of itself.
    assert math.isclose(found.mean(weights), fmean(own), abs_tol=1e-11)
    assert math.isclose(found.variance(weights), expected, abs_tol=1e-11)


def test_cycles_that_asked_different_problems_are_compared_on_those_in_common() -> None:
    few = [cycle(n, ded=AnswerBits(("c", "a"), 0b01, 0b11)) for n in range(2)]
    more = [cycle(n, ded=AnswerBits(("a", "b", "c", "d"), 0b0101, 0b1110)) for n in range(2, 4)]
    panel = panel_of([*few, *more])
    assert panel.num_problems == 2
    # In common are c and a. Greedy: c alone, then both. Sampled: both, then c alone.
    assert panel.strata[0].rows == (0b1101, 0b1101, 0b0111, 0b0111)


@pytest.mark.parametrize("last", [AnswerBits(("x",), 1), None])
def test_nothing_in_common_means_scores_alone(last: AnswerBits | None) -> None:
    metrics = {"mean": {"accuracy": 0.5, "n": 100.0}}
    answers = [AnswerBits(("a",), 1), AnswerBits(("a",), 0), last]
    cycles = [
        CycleFacts(n, "train", CycleState.VALIDATED, 0, 0, validations=(
            ValidationFacts(n, n, "pocket", 0.5, 50, 100, metrics, {} if one is None else {"ded": one}),))
        for n, one in enumerate(answers)
    ]  # fmt: skip
    panel = panel_of(cycles)
    assert not panel.is_paired and panel.scores == (0.5, 0.5, 0.5) and panel.num_problems == 100


def test_a_problem_that_keeps_its_answer_counts_once() -> None:
    """Four problems that turn once have the same errors, whether the rule looks at 4 cycles or sees each one twice."""
    turns = [0b0000, 0b0001, 0b0011, 0b0001]
    names = ("a", "b", "c", "d")
    short = trend_of([cycle(n, ded=AnswerBits(names, bits)) for n, bits in enumerate(turns)])
    twice = [cycle(n, ded=AnswerBits(names, turns[n // 2])) for n in range(8)]
    assert trend_of(twice).error * 2 > 0.8 * short.error  # per cycle of half the length; independent: 0.71
