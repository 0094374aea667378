"""Induction: which pairs a prompt shows, and that no hidden one of them can be looked up in those."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import LonghaulError
from profiles.task_kinds import NAMES
from tests.workers.data.given import checker, merged, problem, write
from workers.data.data_set import read_data_set
from workers.data.tasks import read_tasks
from workers.pocket.evaluation import held_out_problems
from workers.sandbox import Limits, Sandbox
from workers.sandbox.literal import parse_arguments, render
from workers.tasks.items import HiddenProgram
from workers.tasks.judge import Judge
from workers.tasks.pairs import hides_a_shown_input, num_shown_of
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.pocket import PocketStyle
from workers.tasks.prompts.style import PromptStyle, Proposal
from workers.tasks.seeds import seed_entries
from workers.tasks.validate_proposals import Candidate, Rules, check

IDENTITY = "def f(a):\n    return a"
TWO = "def f(a, b=2, *, c=None):\n    return [a, b, c]"
FIVE = ("1", "2", "3", "4", "5")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


@pytest.mark.parametrize(
    ("program", "inputs", "is_shown"),
    [
        pytest.param(IDENTITY, (*FIVE, *FIVE), True, id="the same five again"),
        pytest.param(IDENTITY, (*FIVE, "6", "7", "8", "9", "1"), True, id="one of them"),
        pytest.param(IDENTITY, (*FIVE, "6", "7", "8", "9", "0"), False, id="all new"),
        pytest.param(IDENTITY, ("1", "1", "2", "2"), False, id="equal ones on one side"),
        pytest.param(IDENTITY, ("1", " 1.0"), True, id="an int and a float"),
        pytest.param(IDENTITY, ("1", "True"), True, id="an int and a truth value"),
        pytest.param(IDENTITY, ("0.0", "-0.0"), True, id="a table finds minus zero"),
        pytest.param(IDENTITY, ("1", "'1'"), False, id="an int and a string"),
        pytest.param(IDENTITY, ("[1]", "(1,)"), False, id="a list and a tuple"),
        pytest.param(IDENTITY, ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1.0}"), True, id="a dict in another order"),
        pytest.param(IDENTITY, ("{1, 2, 3}", "{3, 2, 1, 1}"), True, id="a set in another order"),
        pytest.param(IDENTITY, ("[1,\n 2]", "[1, 2]"), True, id="over two lines"),
        pytest.param(IDENTITY, ("1", "a=1"), True, id="by position and by name"),
        pytest.param(TWO, ("1", "1, 2"), True, id="a default filled in"),
        pytest.param(TWO, ("1", "1, c=None"), True, id="the default of a keyword"),
        pytest.param(TWO, ("1", "1, 3"), False, id="another value than the default"),
        pytest.param("def f(*a, **b):\n    return [a, b]", ("1, 2, x=3", "1, 2.0, x=3"), True, id="any number"),
        pytest.param("K = 2\ndef f(a, b=K):\n    return a", ("1", "1"), True, id="a default that has to be run"),
        pytest.param(IDENTITY, ("1, 2", "1, 2"), True, id="a call that will raise"),
    ],
)
def test_a_hidden_input_that_makes_a_shown_call_is_found(program: str, inputs: tuple[str, ...], is_shown: bool) -> None:
    assert hides_a_shown_input(program, inputs, None) is is_shown


_ATOMS = st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, -0.0, 1.0, 2.5]), st.text("ab", max_size=2))
_HASHABLE = st.recursive(_ATOMS, lambda one: st.tuples(one, one), max_leaves=3)
_VALUES = st.one_of(_HASHABLE, st.frozensets(_HASHABLE, max_size=3).map(set), st.lists(_HASHABLE, max_size=2))


@settings(max_examples=200, deadline=None)
@given(st.lists(_VALUES, min_size=2, max_size=10), st.one_of(st.none(), st.integers(1, 4)))
def test_what_is_accepted_cannot_be_answered_by_a_table_of_the_shown_pairs(
    values: list[object], num_shown: int | None
) -> None:
    inputs = [render(value) for value in values]
    count = num_shown_of(len(inputs), num_shown)
    found = [parse_arguments(text).positional[0] for text in inputs]
    in_table = any(hidden in found[:count] for hidden in found[count:])
    assert hides_a_shown_input(IDENTITY, inputs, num_shown) is in_table


def test_a_proposal_whose_table_would_earn_everything_is_refused_under_a_reason_of_its_own(sandbox: Sandbox) -> None:
    candidates = [
        Candidate("ind", Proposal("", inputs), IDENTITY)
        for inputs in ((*FIVE, *FIVE), (*FIVE, "6.0", "7", "8", "9", "10"), (*FIVE, "6.0", "7", "8", "9", "5.0"))
    ]
    found = check(candidates, sandbox, {"ind": ()}, step=1, rules=Rules(num_inputs=10))
    assert [one.reason for one in found] == ["hidden_shown", "", "hidden_shown"]
    pocket = [Candidate("ind", Proposal("", ("1", "2", "3", last)), IDENTITY) for last in ("1", "4")]
    found = check(pocket, sandbox, {"ind": ()}, step=1, rules=Rules(num_inputs=4, num_shown=3))
    assert [one.reason for one in found] == ["hidden_shown", ""]


@pytest.mark.parametrize("style", [AzrStyle(), AzrStyle("azr-chat"), PocketStyle()], ids=lambda style: style.name)
@pytest.mark.parametrize("num_pairs", range(2, 11))
def test_a_prompt_shows_the_pairs_that_are_not_judged_and_no_other(
    style: PromptStyle, num_pairs: int, sandbox: Sandbox
) -> None:
    inputs = tuple(f"'uv{chr(97 + number)}'" for number in range(num_pairs))
    item = HiddenProgram(IDENTITY, inputs, inputs, "", 1, "import")
    count = Judge(sandbox, style.form.num_shown).num_shown_of(item)  # type: ignore[arg-type]
    prompt = style.solve("ind", item)
    assert [text in prompt for text in inputs] == [True] * count + [False] * (num_pairs - count)
    assert 0 < count < num_pairs


@pytest.mark.parametrize("style", [AzrStyle(), PocketStyle()], ids=lambda style: style.name)
def test_the_seeds_hide_new_inputs(style: PromptStyle) -> None:
    (seed,) = [entry for entry in seed_entries(NAMES, style.name) if entry.task == "ind"]
    assert not hides_a_shown_input(seed.program, seed.inputs, style.form.num_shown)


def test_the_held_out_problems_hide_new_inputs() -> None:
    problems = [one.item for one in held_out_problems(300) if isinstance(one.item, HiddenProgram)]
    assert len(problems) == 300
    assert not any(hides_a_shown_input(one.program, one.inputs, PocketStyle.form.num_shown) for one in problems)


def test_a_data_set_takes_no_task_whose_hidden_inputs_are_shown(tmp_path: Path) -> None:
    source = write(tmp_path / "t.jsonl", problem(inputs=("1", "2", "1.0", "2")), problem(inputs=("1", "2", "3", "4")))
    with checker() as check_:
        report = merged(tmp_path / "set.jsonl", check_, source)
    assert report.as_json()["invalid"] == {"hidden_shown": 1}
    assert [one.inputs for one in read_data_set(tmp_path / "set.jsonl").records] == [("1", "2", "3", "4")]


def test_a_finite_source_with_such_a_task_is_refused_by_line(tmp_path: Path, sandbox: Sandbox) -> None:
    path = write(
        tmp_path / "t.jsonl", problem(), json.dumps({"task": "ind", "program": IDENTITY, "inputs": ["1", "1"]})
    )
    with pytest.raises(LonghaulError, match="line 2: a hidden input of an induction task is among those"):
        read_tasks(path, sandbox, NAMES)
