"""Rows P1 to P11 of the algorithm's checklist: what counts as an answer, and what as a proposal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from profiles.schema import Azr
from workers.environments.tool_calls import tool_calls
from workers.rewards.json import last_json
from workers.rewards.of_profile import role_rewards_of
from workers.rewards.reward import Case, score
from workers.rollout.engine import Rollout
from workers.sandbox.literal import same_value
from workers.tasks.entry import make_entry
from workers.tasks.judge import Correctness, Judged
from workers.tasks.prompts import response
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.style import Form, Proposal
from workers.tasks.validate_proposals import Candidate, Rules, _look

STYLE = AzrStyle()
PROGRAM = "def f(a):\n    return a"


def in_answer(text: str) -> str:
    return f"a</think><answer>{text}</answer>"


def fence(tag: str, text: str) -> str:
    return f"```{tag}\n{text}\n```\n"


def reward_of(completion: str, gold: str) -> float:
    answer = STYLE.parse_answer("ded", completion)
    is_right = answer is not None and same_value(answer, gold)
    judged = Judged(Correctness.CORRECT if is_right else Correctness.WRONG, float(is_right))
    entry = make_entry("ded", "def f(a):\n    return a", ["1"], [gold], step=1, source="selfplay")
    rollout = Rollout((1,), (2,), (-1.0,), "stop")
    case = Case(entry, completion, rollout, judged, STYLE.is_well_formed("ded", completion), 0.5, "task")
    return score(case, role_rewards_of(Azr()).solve).total


@pytest.mark.parametrize(
    ("completion", "is_well_formed", "answer", "reward"),
    [
        pytest.param("a</think> <answer>'x'</answer>", True, "'x'", 1, id="P1"),
        pytest.param("a</think>\n\n<answer>\n'x'\n</answer>\nand so on", True, "'x'", 1, id="P1 newlines and run-on"),
        pytest.param("a <answer>'x'</answer>", False, "'x'", -1, id="P2 the thought is not closed"),
        pytest.param("a</think> so <answer>'x'</answer>", False, "'x'", -1, id="P2 words between"),
        pytest.param("a</think><answer>'x'", False, "", -1, id="P2 the answer is not closed"),
        pytest.param(
            "a</think><answer>'x'</answer> User: more <answer>'z'</answer>", True, "'x'", 1, id="P3 a second answer"
        ),
        pytest.param("a</think><answer></answer>", True, "", -0.5, id="P4 an empty answer"),
        pytest.param("Assistant: a</think><answer>'x'</answer>", True, "'x'", 1, id="P10 the word of the prompt"),
        pytest.param("a long thought that is cut at the", False, "", -1, id="P11 cut inside the thought"),
    ],
)
def test_tags_decide_the_form_and_the_first_answer_counts(
    completion: str, is_well_formed: bool, answer: str, reward: float
) -> None:
    assert STYLE.is_well_formed("ded", completion) is is_well_formed
    assert STYLE.parse_answer("ded", completion) == answer
    assert reward_of(completion, "'x'") == reward


def inputs(count: int) -> str:
    return "".join(fence("input", str(number)) for number in range(count))


TEN = tuple(str(number) for number in range(10))
MESSAGE = fence("message", "find it")

PROPOSALS = [
    pytest.param("ded", fence("input", "1") + fence("python", PROGRAM), Proposal(PROGRAM, ("1",)), id="P5"),
    pytest.param(
        "ded", fence("", PROGRAM) + fence("input", "1") + fence("input", "2"), Proposal(PROGRAM, ("1",)),
        id="P6 proposals take the first",
    ),
    pytest.param(
        "ind", inputs(12) + MESSAGE, Proposal("", tuple(str(n) for n in range(2, 12)), "find it"), id="P7 twelve inputs"
    ),
    pytest.param("ind", inputs(9) + MESSAGE, None, id="P7 nine inputs"),
    pytest.param("ind", inputs(10), None, id="P7 no message"),
    pytest.param("ind", inputs(10) + "<message>find it</message>", Proposal("", TEN, "find it"), id="an element"),
    pytest.param("ind", inputs(10) + "# Message: find it", Proposal("", TEN, "find it"), id="a message comment"),
    pytest.param(
        "ded", fence("python", PROGRAM) + "# Input: 1, 2\n\nThat is all.", Proposal(PROGRAM, ("1, 2",)),
        id="an input after a comment",
    ),
    pytest.param("ded", fence("python", PROGRAM), None, id="no input"),
    pytest.param("ded", fence("input", "1"), None, id="no program"),
    pytest.param("ded", fence("java", PROGRAM) + fence("input", "1"), None, id="another language is no program"),
    pytest.param("abd", "```python\ndef f(a):\n    return a\n", None, id="a fence that is not closed"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "answer", "expected"), PROPOSALS)
def test_what_counts_as_a_proposal(task: Any, answer: str, expected: Proposal | None) -> None:
    assert STYLE.parse_proposal(task, in_answer(answer)) == expected


@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        pytest.param("abd", fence("input", "1") + fence("input", "2"), "2", id="P6 answers take the last"),
        pytest.param("abd", "'x', 1", "'x', 1", id="no fence: the whole answer"),
        pytest.param("ded", "so: " + fence("output", "[1,\n 2]"), "[1,\n 2]", id="a value over two lines"),
        pytest.param("ded", "```output 5```", "5", id="a fence in one line"),
        pytest.param("ind", fence("python", "def f(a): return 0") + fence("", PROGRAM), PROGRAM, id="the last program"),
        pytest.param("ind", PROGRAM, None, id="a program without a fence is malformed"),
    ],
)
def test_what_counts_as_an_answer(task: Any, answer: str, expected: str | None) -> None:
    assert STYLE.parse_answer(task, in_answer(answer)) == expected
    assert STYLE.is_well_formed(task, in_answer(answer)) is (expected is not None)


CLASS = """class Node:
    def __init__(self, value):
        self.value = value

    def double(self):
        return 2 * self.value

def f(a):
    return Node(a).double()"""


@pytest.mark.parametrize(
    ("single_def_only", "is_valid"), [pytest.param(False, True, id="P8"), pytest.param(True, False, id="P8 strict")]
)
def test_classes_and_helpers_are_allowed(single_def_only: bool, is_valid: bool) -> None:
    proposal = STYLE.parse_proposal("ded", in_answer(fence("python", CLASS) + fence("input", "3")))
    looked = _look(Candidate("ded", proposal), Rules(single_def_only=single_def_only))
    assert (looked != "screen") is is_valid


RECURSIVE = """def solve(n):  # how to solve(n)
    text = 'resolve(x)'
    return solve(n - 1) + text if n else text"""


@pytest.mark.parametrize("task", [pytest.param("ded", id="P9"), pytest.param("ind", id="P9 as an answer")])
def test_the_only_function_is_the_entry_whatever_its_name(task: Any) -> None:
    if task == "ind":
        program = STYLE.parse_answer("ind", in_answer(fence("python", RECURSIVE)))
    else:
        proposal = STYLE.parse_proposal("ded", in_answer(fence("python", RECURSIVE) + fence("input", "3")))
        program = proposal.program if proposal else None
    assert program == RECURSIVE.replace("def solve", "def f").replace("return solve", "return f")


def test_a_proposal_in_bad_tags_is_still_a_proposal_and_says_so() -> None:
    text = "a <answer>" + fence("python", PROGRAM) + fence("input", "1") + "</answer>"
    assert STYLE.parse_proposal("ded", text) == Proposal(PROGRAM, ("1",), is_well_formed=False)


def test_seeding_reads_the_whole_response_and_strips_the_program() -> None:
    text = "I think of\n" + fence("python", "# why\nx = 1\n" + PROGRAM) + fence("input", "1")
    assert STYLE.parse_proposal("ded", text) is None
    found = STYLE.parse_proposal("ded", text, is_seeding=True)
    assert found is not None and (found.program, found.inputs) == (PROGRAM, ("1",))
    assert AzrStyle(form=Form(seed_parse="answer")).parse_proposal("ded", text, is_seeding=True) is None


def test_the_last_program_may_be_asked_for() -> None:
    text = in_answer(fence("python", "def f(b): return 0") + fence("python", PROGRAM) + fence("input", "1"))
    found = AzrStyle(form=Form(program_fence="last")).parse_proposal("ded", text)
    assert found is not None and found.program == PROGRAM


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("# Output: 5\n\nas shown", "5"),
        ("thus output(5)", "5"),
        ("<output>5</output>", "5"),
        ("The output is: 5.", "5"),
        ("5", "5"),
    ],
)
def test_guesses_are_made_only_where_they_are_asked_for(answer: str, expected: str) -> None:
    lenient = AzrStyle(form=Form(lenient_fallbacks=True))
    assert lenient.parse_answer("ded", in_answer(answer)) == expected
    assert STYLE.parse_answer("ded", in_answer(answer)) == answer


def test_nothing_after_the_first_end_of_an_answer_is_read() -> None:
    assert response.cut("a</answer>b</answer>") == "a</answer>"
    assert not STYLE.is_well_formed("ded", "I write </answer> later</think><answer>1</answer>")


def test_special_tokens_are_taken_out_also_those_that_this_makes() -> None:
    style = AzrStyle(marks=("<|end|>",))
    assert style.parse_answer("ded", "a</think><answer>'<|e<|end|>nd|>x'</answer><|end|>") == "'x'"
    assert style.is_showable("x") and not style.is_showable("'<|end|>'")


def test_thinking_is_told_by_its_words() -> None:
    assert STYLE.is_worked("ded", "so</think><answer>1</answer>")
    assert not STYLE.is_worked("ded", " </think><answer>1</answer>")


@pytest.mark.parametrize(
    ("read", "opening"),
    [
        (response.read, "</think><answer>"),
        (lambda text: response.element(text, "f"), "<f>"),
        (lambda text: response.guessed(text, "f"), "f("),
        (response.fences, "```a\n"),
        (last_json, "```a\n"),
        (tool_calls, "<tool_call><function=f><parameter=a>"),
        (tool_calls, "<parameter=a>"),
    ],
)
def test_openings_without_an_end_are_read_in_linear_time(read: Callable[[str], object], opening: str) -> None:
    """Models that repeat themselves write them. In quadratic time this takes longer than a test may."""
    read("<tool_call><function=f>" + opening * (2_000_000 // len(opening)))
