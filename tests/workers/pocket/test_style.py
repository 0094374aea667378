"""The pocket prompt style: what it shows, and what of a completion counts as the answer."""

import pytest

from workers.tasks.items import HiddenProgram, Triplet
from workers.tasks.prompts.pocket import PocketStyle
from workers.tasks.prompts.style import PromptStyle, Proposal

STYLE: PromptStyle = PocketStyle()
PROGRAM = "def f(a):\n    b = a[1:]\n    return b"
TRIPLET = Triplet(PROGRAM, "'uvw'", "'vw'", 0, "seed")
PROBLEM = HiddenProgram(PROGRAM, ("'uv'", "'wx'", "'yu'", "'SECRET'"), ("'v'", "'x'", "'u'", "'HIDDEN'"), "", 0, "seed")


def test_a_solver_never_sees_what_it_has_to_find() -> None:
    assert STYLE.solve("ded", TRIPLET) == f"<ded>{PROGRAM}<in>'uvw'<out>"
    assert STYLE.solve("abd", TRIPLET) == f"<abd>{PROGRAM}<out>'vw'<in>"
    assert STYLE.solve("ind", PROBLEM) == "<ind>'uv'<out>'v'<sep>'wx'<out>'x'<sep>'yu'<out>'u'<sep><prog>"


def test_a_proposer_sees_its_reference() -> None:
    assert STYLE.propose("ded", [TRIPLET]) == f"<pded>{PROGRAM}<in>'uvw'<sep>"
    assert STYLE.propose("abd", [TRIPLET]) == f"<pabd>{PROGRAM}<in>'uvw'<sep>"
    assert STYLE.propose("ind", [TRIPLET]) == f"<pind>{PROGRAM}<in>"


@pytest.mark.parametrize(
    ("task", "completion", "expected"),
    [
        pytest.param("ded", "'vw'", "'vw'", id="a direct answer is the whole text"),
        pytest.param("ded", "'vw'<eos>", "'vw'", id="the stop token is no part of it"),
        pytest.param("ded", "<work>b=uWc=WuYd='uWY'", "'uWY'", id="a worked answer follows the last equals sign"),
        pytest.param("ded", "<work>b=uWc=WuY", None, id="work that ends without quotes is malformed"),
        pytest.param("ded", "<work>", None, id="work without an answer is malformed"),
        pytest.param("ded", "'vw", None, id="an open string is malformed"),
        pytest.param("ded", "", None, id="nothing is malformed"),
        pytest.param("abd", "<work>c=ub='wrong'a='u'", "'u'", id="only the last value counts"),
        pytest.param("ind", PROGRAM, PROGRAM, id="a direct program"),
        pytest.param("ind", f"<work>\n    b = a[::2]<out>u<no><prog>{PROGRAM}", PROGRAM, id="a program after a search"),
        pytest.param("ind", "<work>\n    b = a[::2]<out>u<no>", None, id="a search that never ends is malformed"),
        pytest.param("ind", "def f(a):\n    b = a +", None, id="what does not parse is malformed"),
        pytest.param("ind", PROGRAM + "\nimport os", None, id="more than the function is malformed"),
    ],
)
def test_what_counts_as_the_answer(task: str, completion: str, expected: str | None) -> None:
    assert STYLE.parse_answer(task, completion) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "completion", "expected"),
    [
        pytest.param("ded", f"{PROGRAM}<in>'uvx'", Proposal(PROGRAM, ("'uvx'",)), id="program and input"),
        pytest.param("abd", f"{PROGRAM}<in>'uvx'<eos>", Proposal(PROGRAM, ("'uvx'",)), id="without the stop token"),
        pytest.param("ded", PROGRAM, None, id="an input is missing"),
        pytest.param("ded", f"{PROGRAM}<in>'a', 'b", None, id="a torn input"),
        pytest.param("ded", "def f(a):<in>'u'", None, id="a program without a body"),
        pytest.param(
            "ind", "'u'<sep>'v'<sep>'w'<sep>'x'", Proposal("", ("'u'", "'v'", "'w'", "'x'")), id="four inputs"
        ),
        pytest.param("ind", "'u'<sep>'v'<sep>'w'", None, id="three inputs are too few"),
        pytest.param("ind", "'u'<sep>'v'<sep>'w'<sep>u", None, id="an input without quotes"),
    ],
)
def test_what_counts_as_a_proposal(task: str, completion: str, expected: Proposal | None) -> None:
    assert STYLE.parse_proposal(task, completion) == expected  # type: ignore[arg-type]


def test_worked_answers_are_told_by_their_first_mark() -> None:
    assert STYLE.is_worked("ded", "<work>b='u'")
    assert not STYLE.is_worked("ded", "'u'")
