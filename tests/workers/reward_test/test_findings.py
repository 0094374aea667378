"""What is said of a reward function's values, on values that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from workers.problems.problem import Problem
from workers.reward_test.findings import Judged, advice, of_completions, summary
from workers.reward_test.rows import Row, with_obvious, wrong_answer


def obvious(count: int = 2) -> list[Row]:
    """Rows 1 and 2, with the answers 1 and 2: right, wrong, empty."""
    return with_obvious([Problem(at, at + 1, f"{at}+1=", str(at + 1)) for at in range(count)])


def given(*texts: str) -> Row:
    return Row(Problem(0, 1, "0+1=", "1"), texts, ("given",) * len(texts))


def judged(rows: list[Row], *values: tuple[Any, ...]) -> list[Judged]:
    return [Judged(row, one, 0.5 * row.problem.line) for row, one in zip(rows, values, strict=True)]


def test_obvious_completions_are_the_right_answer_a_wrong_one_and_nothing() -> None:
    assert [row.completions for row in obvious()] == [
        (r"\boxed{1}", r"\boxed{2}", ""),
        (r"\boxed{2}", r"\boxed{3}", ""),
    ]
    assert wrong_answer("B", ["B", "B", "C"]) == "C" and wrong_answer("1/2", []) == "3/2"
    (without,) = with_obvious([Problem(0, 1, "Write a poem.", "")])
    assert without.kinds == ("wrong", "empty")


def test_the_line_of_the_table() -> None:
    failed = Judged(obvious()[1], (None, None, None), 3.0, ("it raised KeyError",) * 3)
    found = summary("f", [*judged(obvious()[:1], (1.0, 0.0, 0.0)), failed])
    assert found == {
        "function": "f",
        "values": 3,
        "mean": pytest.approx(1 / 3),
        "spread": pytest.approx(2**0.5 / 3),
        "low": 0.0,
        "high": 1.0,
        "equal_groups": 0.0,
        "slowest_row": 2,
        "slowest_s": 3.0,
        "exceptions": 3,
        "first_exception": "it raised KeyError",
    }


ZERO, ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)), [], id="a reward as it should be"),
        pytest.param(
            (ZERO, ZERO),
            [
                "f gives 0 to all 6 completions, the right answers in a box included: none has what it looks for. "
                'E.g. row 1: answer "1", completion "\\boxed{1}" gets 0.'
            ],
            id="the answer is never parsed",
        ),
        pytest.param(
            (ONE, ONE),
            [
                "f gives 1 to all 6 completions: nothing can be learned. "
                'E.g. row 1: answer "1", completion "\\boxed{1}" gets 1.'
            ],
            id="all equal",
        ),
        pytest.param(
            ((1.0, 0.0, 0.0), (0.5, 0.75, 0.0)),
            [
                "f gives a right answer no more than a wrong one in 1 of 2 rows. "
                'E.g. row 2: answer "2", completion "\\boxed{2}" gets 0.5, completion "\\boxed{3}" gets 0.75.'
            ],
            id="a wrong answer that pays",
        ),
        pytest.param(
            ((1.0, 1.0, 0.0), (1.0, 1.0, 0.0)),
            [
                "f gives a right answer no more than a wrong one in 2 of 2 rows; fine for form or length, not for the "
                'answer. E.g. row 1: answer "1", completion "\\boxed{1}" gets 1, completion "\\boxed{2}" gets 1.'
            ],
            id="a reward of the form",
        ),
        pytest.param(((None,) * 3, (None,) * 3), ["f: every call failed"], id="no value at all"),
    ],
)
def test_what_is_said_of_a_function(values: tuple[tuple[Any, ...], ...], expected: list[str]) -> None:
    assert advice("f", judged(obvious(), *values)) == expected


def test_rows_with_equal_rewards_are_told_from_nine_tenths_on() -> None:
    rows = [given("a", "b") for _ in range(10)]
    mostly = [(1.0, 1.0)] * 9 + [(1.0, 0.0)]
    assert advice("f", judged(rows, *mostly)) == [
        "f gives equal rewards to all completions of a row in 9 of 10 rows. GRPO learns nothing from these. "
        "E.g. row 1: 2 times 1."
    ]
    assert advice("f", judged(rows, *[(1.0, 1.0)] * 8, *[(1.0, 0.0)] * 2)) == []


def test_given_completions_without_answer_or_format_are_told_with_an_example() -> None:
    answer, form = of_completions([given("hello", "it may be so " * 10)])
    assert answer == r"the part `correct` finds an answer in no completion; it reads \boxed{4}, for one. " + (
        'E.g. row 1: "hello".'
    )
    assert form.startswith("no completion has the format of the part `format`: a thought that ends once")
    assert of_completions([given(r"so</think>\boxed{1}", "hello")]) == [] == of_completions(obvious())
