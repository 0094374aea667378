"""The six cells: what each prompt shows, in which order, and what it must never show."""

from __future__ import annotations

import pytest

from workers.sandbox.screen import CALLS, TOLD
from workers.tasks.items import HiddenProgram, Triplet
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.style import Form

STYLE = AzrStyle()
PROGRAM = "def f(a):\n    return a * 7919"
ITEM = Triplet(PROGRAM, "'INPUT'", "'OUTPUT'", 1, "selfplay")
PROBLEM = HiddenProgram(
    PROGRAM, tuple(f"'in{n}'" for n in range(10)), tuple(f"'out{n}'" for n in range(10)), "a riddle", 1, "selfplay"
)
ENDING = "\nAssistant: <think>"


def in_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize(("task", "hidden"), [("ded", "deduce the output"), ("abd", "deduce an input")])
def test_a_proposer_is_told_goal_rules_form_and_references_in_this_order(task: str, hidden: str) -> None:
    prompt = STYLE.propose(task, [ITEM] * 6)  # type: ignore[arg-type]
    assert in_order(
        prompt, "User: ", "new and unique", "I.Q. test", hidden, "classes of your own", "## Rules for the code",
        "named `f`", "at least one parameter", "deterministic", "several steps", "within 10 seconds", "no randomness",
        "Imports", "whatever follows is removed", "logging, random", "## Rules for the input", "Exactly one",
        "```python", "```input", "'John', {'age': 20, 'city': 'New York'}", "## What counts", "First make a plan",
        "### Program 1", PROGRAM, "'INPUT'", "'OUTPUT'", "### Program 6",
    )  # fmt: skip
    assert all(word in prompt for word in (*TOLD, *CALLS))
    assert prompt.endswith(ENDING) and prompt.count("### Program") == 6
    assert "global ones are removed" not in prompt


def test_the_two_proposers_differ_in_what_is_to_be_deduced() -> None:
    assert STYLE.propose("ded", [ITEM]) != STYLE.propose("abd", [ITEM])


def test_seeding_says_that_globals_are_removed() -> None:
    assert "global ones are removed" in STYLE.propose("ded", [ITEM], is_seeding=True)


def test_references_may_be_left_out() -> None:
    prompt = STYLE.propose("ded", [])
    assert "Programs that exist already" not in prompt and prompt.endswith(ENDING)


def test_the_test_input_may_be_banned_from_the_program() -> None:
    said = "does not occur in the program"
    assert said not in STYLE.propose("ded", [ITEM])
    assert said in AzrStyle(form=Form(hide_input=True)).propose("ded", [ITEM])


def test_programs_to_build_on_come_last_under_their_new_names() -> None:
    prompt = STYLE.propose("ded", [ITEM], ["def f(x):\n    return f(x - 1)", "def f(y):\n    return y"])
    assert in_order(prompt, "### Program 1", "build on", "def g_0(x):\n    return g_0(x - 1)", "def g_1(y)", "g_0, g_1")


def test_an_induction_proposer_sees_one_program_and_nothing_of_what_it_gives() -> None:
    prompt = STYLE.propose("ind", [ITEM])
    assert in_order(prompt, "10 inputs", "message", "may not contain the code", "plan", PROGRAM, "plugged in", "f(YOUR")
    assert "OUTPUT" not in prompt and "INPUT'" not in prompt and "hashlib" not in prompt


def test_a_solver_sees_all_but_what_it_has_to_find() -> None:
    deduction, abduction = STYLE.solve("ded", ITEM), STYLE.solve("abd", ITEM)
    assert PROGRAM in deduction and "'INPUT'" in deduction and "'OUTPUT'" not in deduction
    assert "one tuple" in deduction
    assert PROGRAM in abduction and "'OUTPUT'" in abduction and "'INPUT'" not in abduction
    assert "one of them" in abduction


def test_an_induction_solver_sees_the_first_half_of_the_pairs_and_the_message() -> None:
    prompt = STYLE.solve("ind", PROBLEM)
    assert all(f"```input_{n}\n'in{n}'\n```\n```output_{n}\n'out{n}'\n```" in prompt for n in range(5))
    assert not any(f"in{n}" in prompt or f"out{n}" in prompt for n in range(5, 10))
    assert "a riddle" in prompt and PROGRAM not in prompt and "named `f`" in prompt


def test_texts_with_braces_are_shown_as_they_are() -> None:
    item = Triplet("def f(a):\n    return f'{a}{{}}'", "{'k': 1}", "'{0}'", 1, "seed")
    for prompt in (STYLE.solve("ded", item), STYLE.propose("abd", [item]), STYLE.propose("ind", [item])):
        assert item.program in prompt
