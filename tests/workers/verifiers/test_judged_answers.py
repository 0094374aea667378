"""What is never paid for, and what a model's right answer may look like: both with and without math-verify.

An answer that merely begins with the right number is wrong: a reward for it would be learnt at once. Where the
rules cannot tell, the answer is wrong too: that costs a reward, the other a policy that is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.workers.verifiers.answer_cases import ALWAYS, NEVER, SAID_RIGHT, SAID_WRONG, SUFFIXES
from workers.verifiers.answers import extract, read_number
from workers.verifiers.symbolic import Symbolic, is_askable
from workers.verifiers.verify import judge


@pytest.fixture(scope="module", params=["exact", "math-verify"])
def compares(request: pytest.FixtureRequest) -> Iterator[Symbolic | None]:
    if request.param == "exact":
        yield None
        return
    pytest.importorskip("math_verify")
    with Symbolic() as opened:
        yield opened


@pytest.mark.parametrize("kind", NEVER)
def test_what_only_looks_like_the_right_number_is_never_right(kind: str, compares: Symbolic | None) -> None:
    paid = [
        (gold, response)
        for gold, contents in NEVER[kind].items()
        for content in contents
        for response in (rf"so \boxed{{{content}}}.", f"<answer>{content}</answer>", f"#### {content}")
        if judge(gold, response, symbolic=compares).correct
    ]
    assert paid == []


@pytest.mark.parametrize("gold", ALWAYS)
def test_the_right_number_is_right_whatever_unit_and_markup_stand_around_it(
    gold: str, compares: Symbolic | None
) -> None:
    missed = [
        (response, verdict.reason)
        for content in ALWAYS[gold]
        for response in (rf"so \boxed{{{content}}}.", f"<answer>{content}</answer>", f"#### {content}")
        if not (verdict := judge(gold, response, symbolic=compares)).correct
    ]
    assert missed == []


def test_what_surrounds_an_answer_may_make_it_another_one(compares: Symbolic | None) -> None:
    for table, expected in ((SAID_RIGHT, True), (SAID_WRONG, False)):
        rows = [(gold, response) for gold, responses in table.items() for response in responses]
        assert [row for row in rows if judge(*row, symbolic=compares).correct != expected] == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_multiplier_a_variable_or_another_number_is_no_unit(suffix: str, compares: Symbolic | None) -> None:
    contents = [f"5{space}{suffix}" for space in ("", " ", "\\ ", "\\,", "~")]
    assert [one for one in contents if judge("5", rf"\boxed{{{one}}}", symbolic=compares).correct] == []


@pytest.mark.parametrize("word", ["million", "k", "dozen", "hundred", "half", "x"])
def test_leniently_too_a_multiplied_number_is_another(word: str) -> None:
    assert not judge("5", f"so it is 5 {word} then", lenient=True).correct
    assert judge("5", "so it is 5 apples then", lenient=True).correct


NUMBERS = st.integers(-(10**9), 10**9).map(str) | st.decimals(0, 10**6, places=2).map(str)
UNITS = st.sampled_from(
    [
        "apples",
        "dollars",
        "miles per hour",
        "kg",
        "m/s",
        "eggs a day",
        "%",
        "square feet",
        "people",
        "cm^2",
        "hours/week",
    ]
)
MULTIPLIERS = st.sampled_from(
    ["k", "M", "m", "bn", "million", "thousand", "hundred", "dozen", "²", "^2", "or", "to", "and a half", "x", "e3",
     "not", "1/2", ":30", ", 6", "-6", "mil", "= 6", "billion dollars"]
)  # fmt: skip


@given(NUMBERS, UNITS)
def test_a_unit_changes_no_number(number: str, unit: str) -> None:
    assert read_number(f"{number} {unit}") == read_number(number) is not None


@given(NUMBERS, MULTIPLIERS, st.sampled_from(["", " ", "\\ ", "\\,"]))
def test_a_multiplier_or_another_number_never_leaves_the_bare_one(number: str, word: str, space: str) -> None:
    for response in (rf"\boxed{{{number}{space}{word}}}", f"The answer is {number}{space}{word}"):
        assert not judge(number, response).correct


@given(st.text("0123456789.,/-+*^_=!:;()[]{}|<>%$\\'’ aebikKmMxu²⁵½", max_size=6))
def test_whatever_follows_in_signs_and_letters_the_number_stays_or_there_is_none(after: str) -> None:
    found = read_number(f"7 {after}")
    # `7 km²` is a number of units, and `\;` a space.
    rest = re.sub(r"(?<=[A-Za-z])\s*(?:\^\s*(?:\{\s*[23]\s*\}|[23])|²)", "", after.replace("\\;", " "))
    assert found is None or not any(sign in rest for sign in "^_=:;[]|<>²⁵")


@pytest.mark.parametrize(
    "answer",
    ["5 m", "5 = 6", "11_2", "0.5 1", r"5\frac12", "|x| = 6", "12,3", "5^12", r"90^\circ", "[5]", "x", "5 < 6"],
)
def test_where_the_right_answer_is_a_number_only_what_can_be_computed_is_asked(answer: str) -> None:
    assert not is_askable("5", answer)


@pytest.mark.parametrize("answer", [r"3=\sqrt{2}", r"x=3=\sqrt{2}", r"\sqrt{2} m", r"1,\sqrt{2}", r"3<\sqrt{2}"])
def test_where_the_right_answer_is_another_value_lists_relations_and_letters_are_not_asked(answer: str) -> None:
    assert not is_askable(r"\sqrt{2}", answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\sqrt{2}", r"x=\sqrt{2}"),
        (r"\sqrt{2}", "2^{1/2}"),
        (r"3\sqrt[3]{4}", r"3 \sqrt[3]{4}"),
        ("x+1", "1+x"),
        (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt{3}}2"),
        (r"\infty", r"+\infty"),
        (r"(1,\pi)", r"( 1 , \pi )"),
    ],
)
def test_other_forms_of_a_value_and_what_has_none_are_asked(gold: str, answer: str) -> None:
    assert is_askable(gold, answer)


@pytest.mark.parametrize(
    "answer", [r"\sqrt{25}", "2+3", r"10 \div 2", r"\sqrt[3]{125}", r"x = \sqrt{25}", "(5)", "2^{2}+1"]
)
def test_what_can_be_computed_is_asked(answer: str) -> None:
    assert is_askable("5", answer)


def test_a_number_that_is_not_closed_by_its_sentence_ends_the_search() -> None:
    found = extract("The answer is 5. No, the answer is 6 million.")
    assert (found.text, found.rule, found.reason) == (None, "phrase", "what follows the number makes it another answer")


@given(st.text("abcdeimnuxy-'’ /", max_size=5))
@example("a-a")
def test_letters_alone_are_a_product_and_no_unit(letters: str) -> None:
    words = letters.replace("/", " ").replace("-", " ").split()
    if words and all(len(word) == 1 for word in words):
        assert read_number(f"7 {letters}") is None
