"""HumanEval and MBPP: what is asked in each form, what counts as the program, and the published solutions."""

from __future__ import annotations

import ast
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Sandbox as SandboxKnobs
from tests.workers.suites.samples import HUMANEVAL_ROWS, MBPP_ROWS, write_data
from workers.problems.test_rows import unit_tests_of
from workers.sandbox import Limits, Sandbox
from workers.suites.answer_format import AnswerFormat, BoxedFormat, PlainFormat, StyleFormat, VerbatimFormat
from workers.suites.question import Question
from workers.suites.registry import load_suites
from workers.suites.scoring import Outcome, metrics_of
from workers.suites.suite import Answer, Suite
from workers.tasks.judge import Correctness
from workers.tasks.prompts.azr import AzrStyle
from workers.verifiers.programs import Limit, judge_programs, sandbox_for

DATA = Path(os.environ.get("LONGHAUL_DATA", "no data"))
needs_published = pytest.mark.skipif(
    not all((DATA / name).is_file() for name in ("HumanEval.jsonl", "mbpp.jsonl")),
    reason="LONGHAUL_DATA names no folder with HumanEval.jsonl and mbpp.jsonl",
)
FORMATS: list[AnswerFormat] = [
    VerbatimFormat(),
    BoxedFormat("boxed", lambda text: f"{text}\n"),
    BoxedFormat("boxed-chat", lambda text: f"<user>{text}<assistant><think>\n"),
    PlainFormat(),
    PlainFormat("plain-chat", lambda text: f"<user>{text}<assistant>"),
    StyleFormat(AzrStyle()),
]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(scripts=True, allow_weak=True)) as one:
        yield one


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Suite]:
    folder = write_data(tmp_path_factory.mktemp("data"))
    return {suite.name: suite for suite in load_suites(["humaneval", "mbpp"], folder, 0)}


def fenced(program: str) -> str:
    return f"So:\n```python\n{program}\n```"


@pytest.mark.parametrize("answer_format", FORMATS, ids=lambda one: one.name)
def test_every_form_that_grpo_knows_asks_for_a_program_and_finds_it(
    answer_format: AnswerFormat, suites: dict[str, Suite]
) -> None:
    (question, _) = suites["humaneval"].questions
    prompt = answer_format.ask(question.kind, question.item)
    assert "def total(xs: List[int]) -> int:" in prompt and "sum(xs)" not in prompt
    assert "number" not in prompt and "boxed" not in prompt
    completion = f"work</think>\n<answer>{fenced('def total(xs): return 1')}</answer>"
    assert answer_format.answer(question.kind, completion) == "def total(xs): return 1"
    assert answer_format.answer(question.kind, "work</think>\n<answer>total</answer>") is None
    assert suites["humaneval"].needs_sandbox(answer_format)


def test_only_the_test_split_of_mbpp_is_asked_with_the_tests_that_its_authors_show(suites: dict[str, Suite]) -> None:
    assert [one.question_id for one in suites["mbpp"].questions] == ["mbpp_11", "mbpp_12"]
    prompt = PlainFormat().ask("code", suites["mbpp"].questions[1].item)
    assert "Write a function for the root." in prompt and "assert root(tree) == 5" in prompt
    assert "class Node" not in prompt


def test_solutions_in_the_published_form_are_right_and_others_wrong(suites: dict[str, Suite], sandbox: Sandbox) -> None:
    human, mbpp = suites["humaneval"].questions, suites["mbpp"].questions
    solutions = [
        (human[0], "def total(xs: List[int]) -> int:\n    return sum(xs)", True),
        (human[0], HUMANEVAL_ROWS[0][2], True),
        (human[0], "def total(xs):\n    return len(xs) + 1", False),
        (human[0], "def sum_of(xs):\n    return sum(xs)", False),
        (human[1], "def twice(x):\n    return once(x) + once(x)", True),
        (human[1], HUMANEVAL_ROWS[1][2], True),
        (mbpp[0], MBPP_ROWS[0][2], True),
        (mbpp[0], "def add(a, b): return a - b", False),
        (mbpp[1], MBPP_ROWS[1][2], True),
        (mbpp[1], "import numpy", False),
        (mbpp[1], None, False),
    ]
    answers = [Answer(question, text) for question, text, _ in solutions]
    wanted = [Correctness.CORRECT if is_right else Correctness.WRONG for _, _, is_right in solutions]
    assert Suite("both", [*human, *mbpp]).judge(answers, sandbox) == wanted


def test_programs_of_a_suite_may_import_what_self_play_may_not(suites: dict[str, Suite]) -> None:
    (question, _) = suites["mbpp"].questions
    answer = Answer(question, "import random, sys, hashlib\ndef add(a, b):\n    return a + b")
    with Sandbox(Limits(allow_weak=True), jobs=1) as narrow:
        assert suites["mbpp"].judge([answer], narrow) == [Correctness.CORRECT]


def test_samples_give_pass_at_k() -> None:
    outcomes = [
        Outcome("a", "code", (True, False, False, False), (1,) * 4),
        Outcome("b", "code", (False,) * 4, (1,) * 4),
    ]
    found = metrics_of(outcomes, greedy=False, ks=(1, 2))
    assert found["code"]["pass_at_1"] == 0.125 and found["mean"]["pass_at_2"] == 0.25


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("HumanEval.jsonl", {"entry_point": "nothing"}, "line 1: its prompt does not begin the function nothing"),
        ("HumanEval.jsonl", {"test": 5}, "line 1 has no text `test`"),
        ("mbpp.jsonl", {"test_list": "assert 1"}, "line 1: test_list: is not a list of statements"),
        ("mbpp.jsonl", {"test_list": []}, "line 1: it has no tests"),
        ("mbpp.jsonl", {"task_id": 700}, "no line has a task_id of the test split"),
    ],
)
def test_a_bad_line_is_told_by_number(tmp_path: Path, name: str, change: dict[str, object], reason: str) -> None:
    file = write_data(tmp_path) / name
    row = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps(row | change))
    with pytest.raises(LonghaulError, match=reason) as caught:
        load_suites([name.partition(".")[0].lower()], tmp_path, 0)
    assert caught.value.exit_code == ExitCode.INPUT


# --- as published ----------------------------------------------------------------------------------------------------


def rows(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def solutions() -> list[tuple[str, str, tuple[str, ...]]]:
    """(name of the function that the first test calls, program, tests) of every published solution."""
    found = []
    for row in rows("HumanEval.jsonl"):
        found.append((str(row["entry_point"]), f"{row['prompt']}{row['canonical_solution']}", unit_tests_of(row)))
    for row in rows("mbpp.jsonl"):
        tests = unit_tests_of(row)
        found.append((_called(str(row["code"]), tests), str(row["code"]), tests))
    return found  # type: ignore[return-value]  # both forms have statements only


def _called(program: str, tests: object) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in the published texts
        defined = {node.name for node in ast.parse(program).body if isinstance(node, ast.FunctionDef)}
    names = [node.id for node in ast.walk(ast.parse(tests[0])) if isinstance(node, ast.Name)]  # type: ignore[index]
    return next(name for name in names if name in defined)


SPOILED = """
_right = {name}
def _spoiled(value):
    if value is None or isinstance(value, str):
        return (value or "") + "?"
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else None
def {name}(*given, **named):
    return _spoiled(_right(*given, **named))
"""
"""A mutant of any program: each value is another one, of the same type where that is easy."""


@needs_published
@pytest.mark.slow
def test_published_solutions_pass_their_own_tests_and_spoiled_ones_fail() -> None:
    published = solutions()
    assert len(published) == 164 + 974
    asked = [(program, tests) for _, program, tests in published]
    spoiled = [(program + SPOILED.format(name=name), tests) for name, program, tests in published]
    limit = Limit(seconds=10.0)
    with sandbox_for(SandboxKnobs(allow_weak=True), limit) as sandbox:
        found = judge_programs(sandbox, [*asked, *spoiled], limit)
    assert [one.reason for one in found[: len(asked)] if not one.is_right] == []
    assert [asked[at][0] for at, one in enumerate(found[len(asked) :]) if one.is_right] == []


@needs_published
def test_all_published_questions_of_the_test_splits_are_asked() -> None:
    found = load_suites(["humaneval", "mbpp"], DATA, 0)
    assert [len(suite.questions) for suite in found] == [164, 500]
    names: list[Question] = [one for suite in found for one in suite.questions]
    assert len({one.content_name for one in names}) == 664
