"""Who is right: the table of edge cases, the command, and what a hostile answer cannot do."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import LonghaulError
from profiles.schema import Grpo
from workers.verifiers import verify
from workers.verifiers.answers import LONGEST_COMPLETION
from workers.verifiers.symbolic import Limits, Symbolic, is_askable
from workers.verifiers.verify import judge, verifier_of


@pytest.fixture(scope="module")
def symbolic() -> Iterator[Symbolic]:
    pytest.importorskip("math_verify")
    with Symbolic() as opened:
        yield opened


CASES = [
    ("1", "72", r"\boxed{72}", True),
    ("2", "1,080", r"\boxed{1080}", True),
    ("3", "1080", r"\boxed{1,080}", True),
    ("4", "18", r"\boxed{\$18}", True),
    ("5", "18", r"\boxed{18 \text{ dollars}}", True),
    ("6", "5", r"\boxed{4} no, \boxed{5}", True),
    ("7", "4", r"\boxed{4} no, \boxed{5}", False),
    ("8", "2", r"\boxed{\dfrac{4}{2}}", True),
    ("9", "0.5", r"\boxed{\frac{1}{2}}", True),
    ("10", "25", r"\boxed{25\%}", True),
    ("11", "25", r"\boxed{0.25}", False),
    ("12", "-3", "\\boxed{\u22123}", True),
    ("13", "3", r"\boxed{-3}", False),
    ("14", "12", r"\boxed{12.0}", True),
    ("15", "12", r"\boxed{x = 12}", True),
    ("17", "7", r"<think>\boxed{9}</think> The answer is 7.", True),
    ("18", "10", "The final answer is: **$10.00**", True),
    ("19", "10", "I counted 3 then 10", False),
    ("20", "6", r"\boxed{5 \text{ or } 6}", False),
    ("21", "1000", r"\boxed{1{,}000}", True),
    ("22", "3", r"\boxed{3", False),
    ("23", "2.5", r"\boxed{2 1/2}", True),
    ("24", "123", r"\boxed{12,3}", False),
    ("by zero", "8", r"\boxed{\frac{8}{0}}", False),
    ("a unit in a tag", "9", "<answer>9 apples</answer>", True),
    ("an empty box", "0", r"\boxed{}", False),
    ("a tight comma", "70000", r"\boxed{70,\!000}", True),
    ("a price with one", "70000", r"\boxed{\$70,\!000}", True),
    ("thin thousands", "70000", r"\boxed{70\,000}", True),
    ("1,200 thinly", "1200", r"\boxed{1\,200}", True),
    ("1,200 with more", "1200", r"\boxed{1\;200}", True),
    ("a thin choice, one", "5", r"\boxed{5\,or\,6}", False),
    ("a thin choice, two", "6", r"\boxed{5\,or\,6}", False),
    ("a thin choice, both", "56", r"\boxed{5\,or\,6}", False),
    ("a list, one", "1", r"\boxed{1,\,2}", False),
    ("a list, two", "2", r"\boxed{1,\,2}", False),
    ("a list, both", "12", r"\boxed{1,\,2}", False),
    ("thin, no thousands", "123", r"\boxed{12\,3}", False),
    ("no product either", "36", r"\boxed{12\,3}", False),
    ("a row's answer", "so\n#### 1,200", "#### 1200", True),
    ("a superscript is a power", "25", r"\boxed{2⁵}", False),
    ("and not a digit", "52", r"\boxed{5²}", False),
    ("of any number", "33", r"\boxed{3³}", False),
    ("at least", "6", r"\boxed{x >= 6}", False),
    ("at most", "6", r"\boxed{x <= 6}", False),
    ("unlike", "6", r"\boxed{x != 6}", False),
    ("a choice of one assigned", "6", r"\boxed{5 or x=6}", False),
    ("two assignments", "6", r"\boxed{x=5, y=6}", False),
    ("a factorial", "5", r"\boxed{5!}", False),
    ("its value", "120", r"\boxed{5!}", False),
    ("an exclamation", "5", "The answer is 5!", True),
    ("thousands by a letter", "5", r"\boxed{5k}", False),
    ("decimals with one", "1200", r"\boxed{1.2k}", False),
    ("a variable", "5", r"\boxed{5x}", False),
    ("words that deny", "5", r"\boxed{5\ \text{not sure}}", False),
    ("words that compare", "3", r"\boxed{3 vs four}", False),
    ("a word that turns the sign", "3", r"\boxed{3 negative}", False),
    ("a phrase with millions", "5", "The answer is 5 million", False),
    ("a phrase with a range", "5", "The answer is 5-6", False),
    ("half as one sign", "1/2", r"\boxed{½}", True),
    ("a mixed number as two signs", "4/3", r"\boxed{1⅓}", True),
    ("hours and minutes", "3", r"\boxed{3 \text{ hours and } 20 \text{ minutes}}", False),
    ("degrees after a box", "30", r"$\boxed{30}^\circ$", True),
    ("a power after a box", "5", r"$\boxed{5}^2$", False),
    ("a root after a box", "5", r"$\boxed{5}\sqrt{2}$", False),
    ("a letter at a box", "5", r"$\boxed{5}x$", False),
    ("a unit at a box", "5", r"$\boxed{5}$ dollars", True),
    ("a box as a divisor", "5", r"$\frac{1}{\boxed{5}}$", False),
    ("more than a box", "5", r"$x > \boxed{5}$", False),
    ("an arrow to a box", "5", r"2 + 3 => \boxed{5}", True),
    ("a quoted box", "5", "so\n> \\boxed{5}", True),
    ("thousands by a space over 3", "1", r"\boxed{1 000/3}", False),
    ("a choice of words", "A", "<answer>A</answer>", True),
    ("another choice", "A", "<answer>B</answer>", False),
]
"""Name, gold, response, whether it is right."""


@pytest.mark.parametrize("with_math_verify", [False, True], ids=["exact", "with math-verify"])
@pytest.mark.parametrize(("gold", "response", "expected"), [pytest.param(*row, id=name) for name, *row in CASES])
def test_the_edge_cases(
    gold: str, response: str, expected: bool, with_math_verify: bool, request: pytest.FixtureRequest
) -> None:
    compares = request.getfixturevalue("symbolic") if with_math_verify else None
    assert judge(gold, response, symbolic=compares).correct == expected


def test_edge_case_16_a_cut_thought_has_no_answer_and_19_one_is_found_leniently() -> None:
    assert not judge("7", r"<think>maybe \boxed{7}", truncated=True).correct
    assert judge("10", "I counted 3 then 10", lenient=True).correct


@pytest.mark.parametrize(
    ("gold", "response", "expected"),
    [
        ("2", r"\boxed{\sqrt{4}}", True),
        ("3", r"\boxed{\sqrt{4}}", False),
        (r"\frac{\sqrt{3}}{2}", r"\boxed{\sqrt{3}/2}", True),
        (r"\sqrt{2}", r"\boxed{3=\sqrt{2}}", False),
        ("x^2+2x+1", r"\boxed{(x+1)^2}", True),
        ("x+1", "the answer is 5", False),
    ],
)
def test_expressions_are_compared_by_math_verify_and_without_it_are_wrong(
    gold: str, response: str, expected: bool, symbolic: Symbolic
) -> None:
    assert judge(gold, response, symbolic=symbolic).correct == expected
    assert not judge(gold, response).correct


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("9**9**9", id="a tower in Python"),
        pytest.param("9^{9^{9^{9}}}", id="a tower in LaTeX"),
        pytest.param("9" * 10_000_000, id="10 MB of digits"),
        pytest.param("(" * 200 + ")" * 50, id="parentheses without end"),
        pytest.param(r"\sqrt{" * 40 + "1" + "}" * 40, id="roots of roots"),
        pytest.param("__import__('os').system('touch owned')", id="a program"),
        pytest.param("\\int_0^1 e^{-x^2} dx", id="an integral"),
        pytest.param("x^{x^{x^{x^{x}}}} = x", id="a tower of letters"),
        pytest.param("\x00\ud800", id="no characters"),
    ],
)
def test_a_hostile_answer_is_wrong_and_harms_nobody(answer: str, symbolic: Symbolic) -> None:
    assert not judge("7", rf"\boxed{{{answer}}}", symbolic=symbolic).correct
    assert judge("2", r"\boxed{\sqrt{4}}", symbolic=symbolic).correct  # the next one is judged as ever


def test_what_needs_too_much_time_or_memory_is_ended_by_the_kernel() -> None:
    pytest.importorskip("math_verify")
    with Symbolic(Limits(cpu_s=1)) as hasty:
        assert hasty.compare("1", "9^{9^{9^{9}}}").reason == "could not be compared within 1 s"
    # Equal, but only who expands both sees it. When memory runs out is chance; sympy takes some MemoryErrors for a no.
    large = "(x+y+z+w)^{12}", "((x+y)^2+2(x+y)(z+w)+(z+w)^2)^{6}"
    with Symbolic(Limits(cpu_s=60, wall_s=120)) as ample:
        assert ample.compare(*large).is_equal
    with Symbolic(Limits(cpu_s=10, memory_mb=1)) as tight:  # beyond what the process has at hand
        assert not tight.compare(*large).is_equal
        assert tight.compare("2", r"\sqrt{4}").is_equal
    with Symbolic(Limits(wall_s=0.0)) as hasty:
        assert hasty.compare("1", "9^{9^{9^{9}}}").reason == "could not be compared within 0 s of wall time"


def test_a_comparing_process_that_was_killed_is_started_again(symbolic: Symbolic) -> None:
    assert symbolic.compare("2", r"\sqrt{4}").is_equal
    assert symbolic._process is not None
    symbolic._process.kill()
    symbolic._process.wait()
    assert symbolic.compare("2", r"\sqrt{4}").is_equal


@pytest.mark.parametrize(
    ("gold", "answer", "askable"),
    [
        ("2", r"\sqrt{4}", True),
        ("x", r"\frac{a}{b}", True),
        ("(1,2)", "(1,2)", True),
        ("12", "1,2", False),
        ("2", r"\int x", False),
        ("2", "two", False),
        ("2", "9" * 21, False),
        ("2", "(" * 9 + ")" * 9, False),
        ("2", "{", False),
        ("2", "5!", False),
        ("2", "a" * 300, False),
        ("2", "", False),
    ],
)
def test_only_short_expressions_without_words_are_parsed_at_all(gold: str, answer: str, askable: bool) -> None:
    assert is_askable(gold, answer) == askable


def test_a_response_of_10_mb_has_no_answer() -> None:
    assert judge("7", r"\boxed{7}" * LONGEST_COMPLETION).reason == "longer than 1000000 characters"


PIECES = [
    *"0123456789.,/-+$%=*{}()^_ \n", "####", "\\boxed{", "<answer>", "</answer>", "</think>", "<think>", "answer is ",
    "\\frac{", "\\text{", "**", "\u2212", "é", "\x00", "\ud800", "１", "²", "½",
]  # fmt: skip


def test_row_31_ten_thousand_random_responses_raise_nothing() -> None:
    draws = Random(31)
    for _ in range(10_000):
        response = "".join(draws.choices(PIECES, k=draws.randrange(40)))
        verdict = judge("7", response, lenient=draws.random() < 0.5, truncated=draws.random() < 0.2)
        assert verdict.reason
        assert not verdict.correct or "7" in response


def test_nobody_reading_the_verdicts_on_is_no_traceback() -> None:
    lines = b'{"gold": "1", "response": "#### 1"}\n' * 20_000
    words = [sys.executable, "-m", "workers.verifiers.verify", "--verifier", "exact"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(lines)
            process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@given(st.text(), st.text())
def test_no_text_breaks_the_judge(gold: str, response: str) -> None:
    assert judge(gold, response).reason


def test_the_profile_names_the_verifier_and_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verifier_of(Grpo()) is None
    monkeypatch.setattr(verify, "is_installed", lambda: False)
    with pytest.raises(LonghaulError, match="needs math-verify, which is not installed") as caught:
        verifier_of(Grpo(verifier="math-verify"))
    assert caught.value.next_command == 'pip install "longhaul[math]"'


def command(lines: list[Any], *arguments: str) -> tuple[int, list[Any], str]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "workers.verifiers.verify", *arguments], input=text, capture_output=True, text=True
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_command_answers_every_line_in_order() -> None:
    code, verdicts, said = command(
        [
            {"gold": "72", "response": r"\boxed{72}", "id": 3},
            {"gold": "7", "response": r"\boxed{7}", "truncated": True},
            {"gold": "so\n#### 1,080", "response": "#### 1081"},
            {"gold": "2", "response": r"\boxed{\sqrt{4}}"},
        ],
        "--verifier",
        "exact",
    )
    assert (code, said) == (0, "")
    assert verdicts == [
        {"correct": True, "extracted": "72", "reason": "the same number"},
        {"correct": False, "extracted": None, "reason": "cut before its answer"},
        {"correct": False, "extracted": "1081", "reason": "another number"},
        {"correct": False, "extracted": r"\sqrt{4}", "reason": "not a number"},
    ]


def test_a_line_that_cannot_be_read_is_answered_and_named() -> None:
    code, verdicts, said = command(["oops", {"gold": "1", "response": "#### 1"}, "", {"gold": True, "response": ""}])
    assert code == 66
    assert [verdict["correct"] for verdict in verdicts] == [False, True, False, False]
    assert said.startswith("error: 3 lines are not {gold, response}:\n  line 1: JSON is malformed")
    assert "\n  line 3: an empty line\n  line 4: Expected `int | float | str`, got `bool` - at `$.gold`\n" in said


def test_a_right_answer_may_be_a_number_without_quotes_as_in_a_file_of_problems() -> None:
    code, verdicts, said = command(
        [{"gold": gold, "response": r"\boxed{12.0}"} for gold in (12, 12.0, 13, "12")], "--verifier", "exact"
    )
    assert (code, said) == (0, "")
    assert [verdict["correct"] for verdict in verdicts] == [True, True, False, True]


@pytest.mark.parametrize("number", ["0.00001", "1e16", "12345678901234567890"])
def test_a_small_or_large_number_without_quotes_is_the_same_as_with_them(number: str) -> None:
    digits = f"{int(float(number))}" if "e" in number else number
    line = f'{{"gold": {number}, "response": "\\\\boxed{{{digits}}}"}}'.encode()
    out = io.BytesIO()
    assert verify.run([line], out, lenient=False, symbolic=None) == []
    assert json.loads(out.getvalue())["correct"], line


def test_a_line_of_brackets_without_end_is_answered_as_the_others_are() -> None:
    deep = b'{"gold": "5", "response": "", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    out = io.BytesIO()
    (said,) = verify.run([deep, rb'{"gold": "5", "response": "\\boxed{5}"}'], out, lenient=False, symbolic=None)
    assert said.startswith("line 1: ")
    assert [json.loads(one)["correct"] for one in out.getvalue().splitlines()] == [False, True]


def test_the_command_compares_expressions_where_math_verify_is_installed(symbolic: Symbolic) -> None:
    code, verdicts, _ = command([{"gold": "2", "response": r"\boxed{\sqrt{4}}"}])
    assert (code, verdicts[0]["correct"]) == (0, True)
