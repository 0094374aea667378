"""Suites: which questions, which subset, and who is right."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.goal import FIELDS, FIELDS_OF_MEAN, REWARDS
from profiles.suites import record_of, suites_for_models
from tests.workers.suites.samples import ABD, DATA, DED, DOUBLE, IND, MATHS, needs_data, triplet, write_data
from workers.cycle.validate import mean_over_tasks
from workers.sandbox import Sandbox
from workers.suites.answer_format import PlainFormat, VerbatimFormat
from workers.suites.cruxeval import stratum_of
from workers.suites.data_files import VARIABLE, data_folder
from workers.suites.question import Question, subset
from workers.suites.registry import load_suites
from workers.suites.scoring import Outcome
from workers.suites.suite import Answer, Suite
from workers.suites.validation import compare
from workers.tasks.judge import Correctness

OF_FILES = [name for name in suites_for_models() if name != "held-out"]  # that one needs a run's own data


@pytest.fixture(scope="module")
def sandbox() -> object:
    with Sandbox(jobs=1) as one:
        yield one


@pytest.mark.parametrize(
    ("question", "text", "is_right"),
    [
        pytest.param(DED, "6", True, id="the output"),
        pytest.param(DED, "6.0", True, id="an equal output"),
        pytest.param(DED, "3 + 3", False, id="an expression is no literal"),
        pytest.param(DED, "f(3)", False, id="nor is a call"),
        pytest.param(DED, "7", False, id="another output"),
        pytest.param(DED, None, False, id="no output"),
        pytest.param(ABD, "3", True, id="the published input"),
        pytest.param(ABD, "a=3", True, id="by name"),
        pytest.param(ABD, "3.0", True, id="another input that gives the output"),
        pytest.param(ABD, "4", False, id="one that gives another"),
        pytest.param(ABD, "1, 2", False, id="too many arguments"),
        pytest.param(ABD, "'a'", False, id="of another type"),
        pytest.param(ABD, "__import__('os').getpid()", False, id="code in place of a literal"),
        pytest.param(ABD, "3) or f(3", False, id="a text that closes the call"),
        pytest.param(ABD, "", False, id="nothing"),
        pytest.param(IND, DOUBLE, True, id="the program"),
        pytest.param(IND, "def f(x):\n    return x + x", True, id="another that does the same"),
        pytest.param(IND, "def f(x):\n    return {1: 2, 2: 4}[x]", False, id="a table of what was shown"),
        pytest.param(IND, "def g(x):\n    return x + x", False, id="under another name"),
        pytest.param(MATHS, "4", True, id="the number"),
        pytest.param(MATHS, "$4.00", True, id="the number in dollars"),
        pytest.param(MATHS, "five", False, id="a word"),
        pytest.param(MATHS, "__import__('os')", False, id="code in place of a number"),
    ],
)
def test_who_is_right(question: Question, text: str | None, is_right: bool, sandbox: Sandbox) -> None:
    suite = Suite("any", [question])
    expected = Correctness.CORRECT if is_right else Correctness.WRONG
    assert suite.judge([Answer(question, text)], sandbox) == [expected]


def test_verdicts_come_in_the_order_of_the_answers(sandbox: Sandbox) -> None:
    answers = [Answer(MATHS, "4"), Answer(ABD, "4"), Answer(DED, None), Answer(DED, "6"), Answer(ABD, "3")]
    verdicts = Suite("any", [ABD, DED, MATHS]).judge(answers, sandbox)
    assert [verdict is Correctness.CORRECT for verdict in verdicts] == [True, False, False, True, True]


def test_a_program_that_never_ends_is_judged_all_the_same(sandbox: Sandbox) -> None:
    endless = Question("e", "abd", triplet("def f(a):\n    while a:\n        pass\n    return a", "0", "0"), 1)
    verdicts = Suite("any", [endless]).judge([Answer(endless, "1"), Answer(endless, "0")], sandbox)
    assert verdicts == [Correctness.WRONG, Correctness.CORRECT]


def test_a_program_may_encode_text_as_one_of_cruxeval_does(sandbox: Sandbox) -> None:
    code = "def f(text, encoding):\n    return text.encode(encoding)"
    question = Question("e", "abd", triplet(code, "'13', 'shift_jis'", "b'13'"), 1)
    assert Suite("any", [question]).judge([Answer(question, "'13', 'shift_jis'")], sandbox) == [Correctness.CORRECT]


# --- subsets ---------------------------------------------------------------------------------------------------------


def numbered(strata: list[str]) -> list[Question]:
    return [Question(f"q{number}", "ded", triplet(), 0, stratum) for number, stratum in enumerate(strata)]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.integers(1, 70), st.randoms())
def test_a_subset_is_fixed_by_the_ids_and_takes_of_each_stratum_its_share(strata, count, rng) -> None:
    questions = numbered(strata)
    chosen = subset(questions, count)
    assert len(chosen) == min(count, len(questions))
    shuffled = rng.sample(questions, len(questions))
    assert {one.question_id for one in subset(shuffled, count)} == {one.question_id for one in chosen}
    assert chosen == [one for one in questions if one in chosen]
    share = len(chosen) / len(questions)
    taken, there = Counter(one.stratum for one in chosen), Counter(strata)
    assert all(abs(taken[name] - there[name] * share) < 1 for name in there)


def test_the_subset_does_not_follow_the_order_of_the_file() -> None:
    numbers = [int(one.question_id[1:]) for one in subset(numbered(["a"] * 400), 40)]
    assert 120 < sum(numbers) / 40 < 280


@pytest.mark.parametrize(
    ("code", "output", "stratum"),
    [
        ("def f(a):\n    return a", "'x'", "short text"),
        ("def f(a):\n" + "    a += 1\n" * 6 + "    return a", "[1]", "middle list"),
        ("def f(a):\n" + "    a += 1\n" * 9 + "    return a", "-3", "long other"),
    ],
)
def test_programs_are_grouped_by_length_and_type_of_output(code: str, output: str, stratum: str) -> None:
    assert stratum_of(code, output) == stratum


# --- loading ---------------------------------------------------------------------------------------------------------


def test_every_suite_loads_from_a_data_folder(tmp_path: Path) -> None:
    found = load_suites(OF_FILES, write_data(tmp_path), 2)
    assert {suite.name: len(suite.questions) for suite in found} == {
        "cruxeval-i": 2, "cruxeval-o": 2, "gsm8k": 2, "humaneval": 2, "mbpp": 2, "pocket": 6, "words": 6,
    }  # fmt: skip


def test_word_problems_are_scored_by_their_number_of_operations() -> None:
    suite = load_suites(["words"], None, 3)[0]
    assert [one.task for one in suite.questions] == ["ops1"] * 3 + ["ops2"] * 3 + ["ops3"] * 3
    right = [Answer(one, one.gold) for one in suite.questions]
    wrong = [Answer(one, str(int(one.gold) + 1)) for one in suite.questions]
    assert suite.judge(right, None) == [Correctness.CORRECT] * 9
    assert suite.judge(wrong, None) == [Correctness.WRONG] * 9
    assert not suite.needs_sandbox(VerbatimFormat())


def test_a_question_is_listed_under_its_kind_where_nothing_else_is_said() -> None:
    assert (DED.task, MATHS.task) == ("ded", "maths")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        pytest.param("cruxeval_o", ExitCode.USAGE, "did you mean cruxeval-o?", id="a typo"),
        pytest.param("gsm", ExitCode.USAGE, "did you mean gsm8k?", id="half a name"),
        pytest.param(
            "zzz",
            ExitCode.USAGE,
            "there are cruxeval-i, cruxeval-o, gsm8k, held-out, humaneval",
            id="nothing like it",
        ),
        pytest.param("fake", ExitCode.USAGE, "asks no model", id="one without questions"),
    ],
)
def test_an_unknown_suite_is_told_with_the_nearest_name(name: str, code: ExitCode, words: str, tmp_path: Path) -> None:
    with pytest.raises(LonghaulError) as caught:
        load_suites([name], tmp_path, 0)
    assert caught.value.exit_code == code and words in caught.value.what


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "is missing", id="missing"),
        pytest.param("", "holds no examples", id="empty"),
        pytest.param("\n\n", "holds no examples", id="blank"),
        pytest.param('{"id": "x", "code"', "line 1 is not valid JSON", id="torn"),
        pytest.param(
            '{"id": "x", "code": "c", "input": 3, "output": "o"}', "line 1 has no text `input`", id="a number"
        ),
        pytest.param("[1]", "line 1 has no text `id`", id="a list"),
    ],
)
def test_a_bad_data_file_is_a_clear_error(content: str | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "cruxeval.jsonl").write_text(content)
    with pytest.raises(LonghaulError) as caught:
        load_suites(["cruxeval-i"], tmp_path, 0)
    assert caught.value.exit_code == ExitCode.INPUT and words in caught.value.what


def test_a_missing_file_is_told_with_its_source_and_its_place(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError) as caught:
        load_suites(["gsm8k"], tmp_path, 0)
    assert "github.com/openai/grade-school-math" in caught.value.next_command
    assert str(tmp_path / "gsm8k_test.jsonl") in caught.value.next_command


def test_without_a_folder_both_ways_to_name_one_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(LonghaulError) as caught:
        load_suites(["gsm8k"], data_folder(""), 0)
    assert "--data" in caught.value.next_command and VARIABLE in caught.value.next_command


def test_a_folder_that_is_named_comes_before_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "elsewhere")
    assert data_folder("here") == Path("here")
    assert data_folder("") == Path("elsewhere")


def test_a_word_problem_without_a_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "q", "answer": "no idea"}')
    with pytest.raises(LonghaulError, match="line 1: no number follows ####"):
        load_suites(["gsm8k"], tmp_path, 0)


# --- fingerprints ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_changes_with_question_prompt_answer_and_seed() -> None:
    plain, other = PlainFormat(), PlainFormat("plain", lambda text: text)
    prints = {
        Suite("s", [DED]).fingerprint(plain),
        Suite("s", [DED]).fingerprint(other),
        Suite("s", [Question("d", "ded", triplet(wanted="7"), 2)]).fingerprint(plain),
        Suite("s", [Question("d", "ded", triplet(), 3)]).fingerprint(plain),
        Suite("s", [DED]).reseeded(5).fingerprint(plain),
        Suite("s", [DED, ABD]).fingerprint(plain),
    }
    assert len(prints) == 6
    assert Suite("t", [DED]).fingerprint(plain) in prints
    assert Suite("s", [DED]).reseeded(0).fingerprint(plain) in prints


# --- as published ----------------------------------------------------------------------------------------------------


@needs_data
def test_cruxeval_as_published_is_solved_by_its_own_answers(sandbox: Sandbox) -> None:
    for_input, for_output = load_suites(["cruxeval-i", "cruxeval-o"], Path(DATA), 0)
    assert len(for_input.questions) == len(for_output.questions) == 800
    answers = [Answer(one, one.item.output) for one in for_output.questions]
    assert for_output.judge(answers, sandbox).count(Correctness.CORRECT) == 800
    answers = [Answer(one, one.item.input) for one in for_input.questions]
    # 13 of the published inputs are expressions, which no answer may be.
    assert for_input.judge(answers, sandbox).count(Correctness.CORRECT) == 787


@needs_data
def test_gsm8k_as_published_is_solved_by_its_own_answers() -> None:
    (suite,) = load_suites(["gsm8k"], Path(os.environ["LONGHAUL_DATA"]), 0)
    assert len(suite.questions) == 1319
    answers = [Answer(question, question.gold) for question in suite.questions]
    assert suite.judge(answers, None).count(Correctness.CORRECT) == 1319


@needs_data
def test_two_hundred_of_cruxeval_look_like_the_whole() -> None:
    (whole,) = load_suites(["cruxeval-o"], Path(DATA), 0)
    (part,) = load_suites(["cruxeval-o"], Path(DATA), 200)
    shares = [
        Counter(one.stratum for one in suite.questions).get("short text", 0) / len(suite.questions)
        for suite in (whole, part)
    ]
    assert abs(shares[0] - shares[1]) < 0.005


def test_pocket_problems_in_words_are_judged_by_running_them(sandbox: Sandbox) -> None:
    (suite,) = load_suites(["pocket"], None, 2)
    right = [
        Answer(one, one.item.program if one.kind == "ind" else one.item.input if one.kind == "abd" else one.item.output)
        for one in suite.questions
    ]
    assert suite.needs_sandbox(PlainFormat())
    for judged in (suite.judge(right, sandbox), suite.judge(right, None)):
        assert judged == [Correctness.CORRECT] * 6


def test_a_goal_of_a_run_may_name_just_what_validations_score(tmp_path: Path) -> None:
    for suite in load_suites(OF_FILES, write_data(tmp_path), 2):
        assert {question.task for question in suite.questions} == {*record_of(suite.name).tasks}
    right, wrong = Outcome("q", "ind", (True,), (1,)), Outcome("q", "ind", (False,), (1,))
    metrics = compare([right], [wrong])
    assert set(metrics["ind"]) == {*FIELDS} - {*REWARDS}
    rewarded = [replace(one, rewards=(0.5,)) for one in (right, wrong)]
    assert set(compare(rewarded[:1], rewarded[1:])["ind"]) == {*FIELDS, "not_judged"}
    assert set(mean_over_tasks(metrics)) == {*FIELDS_OF_MEAN} - {*REWARDS}
