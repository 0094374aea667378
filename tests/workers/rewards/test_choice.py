"""Which letter of a multiple choice a completion chooses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.rewards.cases import case_of, earned
from workers.rewards.choice import Choice


@pytest.mark.parametrize(("text", "expected"), [
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("**B**", "B"),
    ("**(B).**", "B"),
    ("B.", "B"),
    ("B) Paris", "B"),
    ("(B) Paris", "B"),
    ("B: Paris", "B"),
    ("Option B", "B"),
    ("Let me see.\n\nB\n", "B"),
    ("A) Rome\nB) Paris", None),
    ("The answer is A.\nA) Rome\nB) Paris", "A"),
    ("Let me see: A is wrong.\nSo it is (C).", "C"),
    ("Either (A) or (C).", None),
    ("The answer is B.", "B"),
    ("The answer is **B**, because A is wrong.", "B"),
    ("the correct answer is (b)", "B"),
    ("Answer: B", "B"),
    ("ANSWER: $B$", "B"),
    (r"The answer is \(B\).", "B"),
    (r"At first I think the answer is A. Checking again, the answer is \(B\).", "B"),
    (r"\[B\]", "B"),
    ("**Answer: B**", "B"),
    ("**Answer:** B", "B"),
    ("Answer: `B`\n\nI hope that this helps.", "B"),
    ("The correct option is B", "B"),
    ("The answer must be option D, since C is too small.", "D"),
    ("I choose D.", "D"),
    ("The answer is B. No: the answer is C.", "C"),
    ("Option A is wrong. Option B too. The answer is C", "C"),
    ("The answer is B or C.", None),
    ("The answer is B and C", None),
    ("Answer: A, C", None),
    ("Answer: A/C", None),
    ("The answer is B, C is too small.", "B"),
    ("The answer is A.", "A"),
    ("The answer is A because it is red", "A"),
    ("Answer: A triangle has three sides", None),
    ("The answer is not B", None),
    ("The answer is a big one", None),
    ("The answer is Berlin", None),
    ("The answer is B-flat", None),
    ("The answer is F", None),
    (r"so \boxed{B}", "B"),
    (r"\boxed{(B)}", "B"),
    (r"\boxed{\text{B}}", "B"),
    (r"\boxed{B) 42}", "B"),
    (r"\boxed{b}", "B"),
    (r"\boxed{A} no \boxed{B}", "B"),
    (r"\boxed{A} or \boxed{B}", None),
    (r"\boxed{A or B}", None),
    (r"\boxed{A, B}", None),
    (r"\boxed{42}", None),
    (r"The answer is B. \boxed{42}", None),
    (r"The answer is A. \boxed{B}", "B"),
    ("<answer>B</answer>", "B"),
    ("<answer>\nB. Paris\n</answer>", "B"),
    ("#### B", "B"),
    ("A</think>B", "B"),
    ("The answer is A.</think>I do not know", None),
    ("<think>B", None),
    ("", None),
    ("I do not know.", None),
    ("A B C D E", None),
])  # fmt: skip
def test_the_chosen_letter_is_found(text: str, expected: str | None) -> None:
    assert Choice().chosen(case_of(text)) == expected


@pytest.mark.parametrize(("options", "gold", "text", "expected"), [
    ({}, "B", "B", 1.0),
    ({}, "B", "C", 0.0),
    ({}, "(b)", "B", 1.0),
    ({}, "B.", "B", 1.0),
    ({}, "1", "B", 1.0),
    ({"letters": "abcdefghij"}, "J", "The answer is (J)", 1.0),
    ({"letters": "AB"}, "A", "C", 0.0),
])  # fmt: skip
def test_the_right_letter_earns_one(options: dict[str, Any], gold: str, text: str, expected: float) -> None:
    assert earned("choice", options, text, gold) == expected


def test_a_column_may_hold_the_number_of_the_right_letter() -> None:
    assert earned("choice", {"column": "label"}, "C", columns={"label": 2}) == 1.0


def test_a_completion_that_was_cut_inside_its_thoughts_chooses_nothing() -> None:
    assert earned("choice", {}, "The answer is B", "B", cut=True) == 0.0
