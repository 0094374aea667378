"""Answers are found by fixed rules, and numbers are read exactly; nothing of them is run."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.verifiers.answers import LONGEST_COMPLETION, after_mark, extract, gold_of, is_formatted, plain, read_number

DATA = Path(os.environ.get("LONGHAUL_DATA", "no data"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18", 18), (" 18 ", 18), ("18.", 18), ("18.0", 18), ("$18", 18), ("$ 18", 18), ("18%", 18),
        ("1,234", 1234), ("$1,234.50", Fraction("1234.5")), ("12,345,678", 12345678), ("-5", -5), ("-$5", -5),
        ("$-5", -5), ("+5", 5), (".5", Fraction(1, 2)), ("3/4", Fraction(3, 4)), ("18 eggs a day.", 18),
        ("**18**", 18), ("**$18.00** dollars", 18), ("0.1", Fraction(1, 10)), ("007", 7),
        ("5 %.", 5), ("2 1/2", Fraction(5, 2)), ("x = 18", 18), ("1⅓", Fraction(4, 3)), ("½", Fraction(1, 2)),
        ("-2 1/2", Fraction(-5, 2)), ("1 999/1000", Fraction(1999, 1000)), ("−3", -3), ("１２", 12),
        (r"\$18", 18), (r"25\%", 25), (r"18 \text{ dollars}", 18), (r"18\ \mathrm{kg}", 18), (r"1{,}000", 1000),
        (r"\frac{1}{2}", Fraction(1, 2)), (r"\dfrac{4}{2}", 2), (r"-\tfrac{3}{4}", Fraction(-3, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)), ("$18$", 18), (r"\(18\)", 18), (r"\text{18}", 18), ("60 km/h", 60),
        (r"90^\circ", 90), ("18 man-hours", 18), ("18 eggs (a day)", 18), ("5€", 5), (r"\left 18 \right", 18),
        (r"70,\!000", 70000), (r"\$70,\!000", 70000), (r"70\,000", 70000), (r"1\,200", 1200), (r"1\;200", 1200),
        (r"-1\,234\,567.5\,\text{m}", Fraction("-1234567.5")), (r"1{,}\!200", 1200), (r"7\!0", 70), (r"18\,kg", 18),
        (r"25\,\%", 25), (r"2\,\frac{1}{2}", Fraction(5, 2)), (r"2\,1/2", Fraction(5, 2)), (r"18\,(a day)", 18),
    ],
)  # fmt: skip
def test_a_number_is_read_whatever_stands_around_it(text: str, expected: Fraction) -> None:
    assert read_number(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "eggs", "3*4", "3 4", "1e5", "1E5", "1/0", "1.5/2", "1,23", "1,2345", "18/", "2**3", "--5", "None", "12,3",
     "__import__('os')", "١٨", "0x10", "1.2.3", "5 or 6", "5 or x", "5 million", "5 dozen", r"5 \text{ or } 6", "5 - x",
     "5^2", r"\frac{8}{0}", r"\sqrt{4}", "2 * 1/2", "5(3)", "5/x", "x = ", "1e", "18..", "18, as said",
     "3+4=7", "2⁵", "5!", "5k", "5x", "5 m", "x >= 6", "5 not sure", "x=5, y=6", "0,500",
     "4 squared", "3 1/0", "9" * 65, "9" * 300,
     "1 000/3", "1 500/3", "1 3/2", "2 2/2", "2 0/2", "2 01/2", r"1 \frac{500}{3}",
     "18 " + "very " * 100 + "long", r"5\,or\,6", r"5\,or\,x", r"5\!or\!x", r"1,\,2", r"1,\;2,\;3", r"1\,2", r"12\,3",
     r"1200\,300", r"1\,200\,30", r"1\,200\,3000", r"1,\ 200", r"1\ 200", "1~200", r"1\quad 200"],
)  # fmt: skip
def test_what_is_no_plain_number_is_none(text: str) -> None:
    assert read_number(text) is None


@given(st.text(max_size=80) | st.text(r"0123456789.,/-+$%=*\{} frac", max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = read_number(text)
    assert found is None or isinstance(found, Fraction)


@given(st.integers(-(10**15), 10**15))
def test_thousands_commas_change_nothing(number: int) -> None:
    assert read_number(f"{number:,}") == read_number(str(number)) == number


@given(st.fractions())
def test_a_fraction_is_read_back_exactly(number: Fraction) -> None:
    assert read_number(str(number)) == number


def test_what_is_longer_than_anybody_s_answer_is_not_looked_at() -> None:
    assert plain("9" * 5_000_000) is None
    assert read_number("9" * 5_000_000) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so\n#### 18\n", "18"),
        ("#### 18 #### 19", "18 #### 19"),
        ("#### 1\nQuestion: ...\n#### 2", "1"),
        ("none", None),
        ("####", ""),
    ],
)
def test_the_first_mark_counts_where_a_base_model_goes_on_to_questions_of_its_own(
    text: str, expected: str | None
) -> None:
    assert after_mark(text) == expected


@pytest.mark.parametrize(
    ("completion", "text", "rule"),
    [
        pytest.param(r"#### 1 <answer>2</answer> \boxed{3} the answer is 4", "3", "boxed", id="a box before all"),
        pytest.param("#### 1 <answer>2</answer> the answer is 4", "2", "answer tag", id="then a tag"),
        pytest.param("the answer is 4\n#### 1", "1", "mark", id="then a mark"),
        pytest.param("Answer: 5. The final answer is: **6**", "6", "phrase", id="then a phrase, the last"),
        pytest.param(r"\boxed{4} no, \boxed{5}", "5", "boxed", id="the last box"),
        pytest.param(r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed", id="braces in a box"),
        pytest.param(r"\boxed{\{1\}}", r"\{1\}", "boxed", id="braces that are meant"),
        pytest.param(r"\boxed {7}", "7", "boxed", id="a space before the brace"),
        pytest.param("#### 1\n#### 2\nbye", "2", "mark", id="the last mark, to its line's end"),
        pytest.param("<answer>1</answer><answer> 2 </answer>", "2", "answer tag", id="the last tag"),
        pytest.param("The answer is 7, since 3 + 4 = 7.", "7", "phrase", id="a phrase and its reason"),
        pytest.param(r"the answer is \$10.50!", "$10.50", "phrase", id="a price"),
        pytest.param("the answer is 7 apples", "7", "phrase", id="a unit"),
        pytest.param(r"the answer is $70,\!000$", r"$70,\!000", "phrase", id="thousands as LaTeX sets them"),
        pytest.param(r"the answer is 1{,}200\,\text{m}", "1{,}200", "phrase", id="thousands in braces"),
        pytest.param("<think>9</think>The answer is 7", "7", "phrase", id="after the thoughts"),
        pytest.param("a</think>\\boxed{1}</think>#### 2", "2", "mark", id="after the last end of thoughts"),
        pytest.param("I counted 3 then 10", None, None, id="no mark at all"),
        pytest.param("the answer is unknown", None, None, id="a phrase without a number"),
        pytest.param("the answer is 5 or 6", None, "phrase", id="a phrase with a choice"),
        pytest.param(r"The answer is \(18\).", "18", "phrase", id="a phrase with a formula"),
        pytest.param(r"The answer is \[ 18 \]", "18", "phrase", id="a phrase with a displayed formula"),
        pytest.param(r"The answer is $\$18$.", "$18", "phrase", id="a phrase with a price as a formula"),
        pytest.param("The answer is $x=18$.", "18", "phrase", id="a phrase with a name"),
        pytest.param(r"The answer is $\frac{3}{4}$.", r"\frac{3}{4}", "phrase", id="a phrase with a fraction"),
        pytest.param(
            r"The answer is 3. No: the answer is \(4\).", "4", "phrase", id="a phrase taken back by a formula"
        ),
        pytest.param(r"The answer is 3. No: the answer is $\sqrt{2}$.", None, "phrase", id="a phrase taken back"),
        pytest.param('The answer is 3. No: the answer is "four".', None, "phrase", id="a phrase taken back in words"),
        pytest.param("The answer is 3. I hope the answer is clear.", "3", "phrase", id="a phrase that announces none"),
        pytest.param("the answer is 5*6", None, "phrase", id="a phrase with a product"),
        pytest.param(r"the answer is 1\,2", None, "phrase", id="a phrase with two numbers"),
        pytest.param("the answer is 1.2.3", None, "phrase", id="a phrase with a broken number"),
        pytest.param(r"\boxed{3", None, "boxed", id="a box that does not close"),
        pytest.param(r"\boxed{1} \boxed{3", None, "boxed", id="not even after one that does"),
        pytest.param(r"\boxed{ }", None, "boxed", id="an empty box"),
        pytest.param("<think>\\boxed{7}", None, None, id="thoughts that do not end"),
        pytest.param("</answer>5<answer>", None, None, id="tags the wrong way round"),
        pytest.param("", None, None, id="nothing"),
    ],
)
def test_the_first_rule_that_matches_decides(completion: str, text: str | None, rule: str | None) -> None:
    found = extract(completion)
    assert (found.text if not found.reason else None, found.rule) == (text, rule)
    assert bool(found.reason) == (text is None)


def test_a_cut_completion_has_an_answer_only_after_its_thoughts() -> None:
    assert extract(r"\boxed{7}", truncated=True).text is None
    assert extract(r"</think>\boxed{7}", truncated=True).text == "7"


def test_leniently_the_last_number_counts_but_no_part_of_one() -> None:
    assert extract("I counted 3 then 10", lenient=True).text == "10"
    assert extract("**So 10**", lenient=True).text == "10"
    assert extract("3 + 7 = 10", lenient=True).text == "10"
    assert extract("none", lenient=True).text is None


@pytest.mark.parametrize("text", [
    "from 3 to 1.2.3", r"from 3 to 1\;20", "So x is 5^2", "we get 3*4", "we get 3 * x", "It is 5 or 6", r"\frac{2}{3}",
    r"it is \sqrt{3}", "x^{3}", r"5\times10^{5}", r"5 \times 10", "10-5", "10 - 5", "about $5$ million", "x < 5",
    r"x \leq 5", "5 = x",
])  # fmt: skip
def test_leniently_a_part_of_the_last_number_is_no_answer(text: str) -> None:
    assert extract(text, lenient=True).text is None


@pytest.mark.parametrize(
    ("completion", "truncated", "formed"),
    [
        (r"so</think>\boxed{7}", False, True),
        (r"so</think>\boxed{7}", True, False),
        (r"so</think>a</think>\boxed{7}", False, False),
        (r"\boxed{7}", False, False),
        (r"so</think>\boxed{seven}", False, False),
        ("so</think>#### 7", False, False),
    ],
)
def test_the_form_is_thoughts_that_end_once_and_a_number_in_a_box(
    completion: str, truncated: bool, formed: bool
) -> None:
    assert is_formatted(completion, truncated=truncated) == formed


HOSTILE = [
    r"\boxed{",
    r"\boxed{5}",
    r"\boxed{\boxed{5}",
    "answer is 5 apples ",
    "answer is 5" + " " * 99,
    "<answer>",
    "</answer>",
    "####",
    "answer ",
    "answer is ",
    "answer:",
    "9,999",
    r"9\,999",
    r"9,\!",
    "</think>",
    "{",
    "\\",
    "**",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_repetition_makes_the_search_slow(piece: str) -> None:
    # What takes more than linear time in a million characters does not end within the test's time limit.
    extract((piece * LONGEST_COMPLETION)[:LONGEST_COMPLETION], lenient=True)


NEIGHBOURS = [
    " ", "\n", "$", "*", "{", "}", "(", ")", "~", ">", "<", "#", "> ", "# ", "- ", "1. ", "<a ", " a=b", " a='", "<<",
    "\\", "\\,", "\\ ", "\\left(", "\\right)", "^", "^{", "\\circ", "_{", "1", "1/", "x", "-", "!", "\\sqrt{",
    "\\frac{1}{", "\\frac{", "{}", "°", "\\text{", "or ", "illion", "{1}", "$ $", "\\boxed{5}^", "=>", "<b>", "\\sqrt[",
]  # fmt: skip


@pytest.mark.parametrize("piece", NEIGHBOURS)
def test_no_repetition_next_to_a_box_makes_the_search_slow(piece: str) -> None:
    side = (piece * LONGEST_COMPLETION)[: LONGEST_COMPLETION // 2 - 9]
    extract(rf"{side}\boxed{{5}}{side}")
    extract(rf"{side}> \boxed{{5}}" + "}" * (len(side) - 9))


def test_a_completion_that_nobody_writes_is_not_searched() -> None:
    found = extract("x" * LONGEST_COMPLETION + r" \boxed{7}")
    assert (found.text, found.reason) == (None, "longer than 1000000 characters")


@given(st.text(), st.booleans(), st.booleans())
def test_no_text_breaks_the_search(text: str, truncated: bool, lenient: bool) -> None:
    found = extract(text, truncated=truncated, lenient=lenient)
    assert (found.text is None) <= bool(found.reason)


@pytest.mark.parametrize(("name", "rows"), [("gsm8k_train.jsonl", 7473), ("gsm8k_test.jsonl", 1319)])
def test_every_gold_of_gsm8k_is_a_number(name: str, rows: int) -> None:
    if not (DATA / name).is_file():
        pytest.skip("LONGHAUL_DATA names no folder with it")
    answers = [msgspec.json.decode(line)["answer"] for line in (DATA / name).read_bytes().splitlines()]
    found = [read_number(gold_of(answer)) for answer in answers]
    assert len(found) == rows
    assert [answer for answer, number in zip(answers, found, strict=True) if number is None] == []
    # What the loader takes as the right answer, the judge also finds when a model writes the published solution.
    assert [extract(answer).text for answer in answers] == [gold_of(answer) for answer in answers]
    for form in (r"\boxed{\$%s}", r"\boxed{%s\text{ apples}}", "the answer is %s dollars.", r"\boxed{x = %s}"):
        said = [extract(form % gold_of(answer)).text or "" for answer in answers]
        assert [read_number(one) for one in said] == found
