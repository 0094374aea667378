"""Proposals and answers against the real sandbox: rows R, B, P and V of the checklist that need both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from profiles.schema import Profile
from workers.azr.buffers import Buffer
from workers.pocket.evaluation import held_out_problems
from workers.sandbox import Case, Limits, Result, Sandbox, Status
from workers.sandbox.verdict import agree
from workers.suites.held_out import held_out_of
from workers.tasks.entry import Entry, make_entry
from workers.tasks.items import Task
from workers.tasks.judge import Answer, Correctness, Judge
from workers.tasks.kinds.registry import kind_of
from workers.tasks.prompts.style import Proposal
from workers.tasks.styles import output_rule_of
from workers.tasks.validate_proposals import UNFAIR, Candidate, Checked, Rules, check

IDENTITY = "def f(a):\n    return a"
ABS = "def f(a):\n    return abs(a)"
BREAKS = "while True: pass"
BAD = "class Bad(Exception):\n    pass\ndef f(a):\n    if a:\n        raise Bad\n    return a"
COUNTER = "from collections import Counter\ndef f(a):\n    return Counter(a)"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


@pytest.fixture(scope="module")
def impatient() -> Iterator[Sandbox]:
    """For tests in which many programs never end."""
    with Sandbox(Limits(cpu_s=0.25, allow_weak=True), jobs=1) as box:
        yield box


def verdicts(sandbox: Sandbox, proposals: Sequence[tuple[Task, str, tuple[str, ...]]], **knobs: Any) -> list[Checked]:
    candidates = [
        Candidate(task, Proposal("" if task == "ind" else program, inputs), program)
        for task, program, inputs in proposals
    ]
    settings: dict[str, Any] = {"max_output_chars": 200, "num_inputs": 4}
    empty: dict[Task, Buffer] = {task: Buffer(9) for task in ("abd", "ded", "ind")}
    known = knobs.pop("known", empty)
    return check(candidates, sandbox, known, step=3, rules=Rules(**(settings | knobs)))


def reasons(found: list[Checked]) -> list[str]:
    return [one.reason for one in found]


def test_a_valid_proposal_becomes_a_task_with_canonical_arguments_and_its_output(sandbox: Sandbox) -> None:
    (found,) = verdicts(sandbox, [("ded", "def f(a, b):\n    return [a, b]", ("[1,\n 2],'x'",))])
    assert found.entry is not None and not found.reason
    assert (found.entry.inputs, found.entry.outputs, found.entry.step) == (("[1, 2], 'x'",), ("[[1, 2], 'x']",), 3)


@pytest.mark.parametrize(
    ("program", "argument", "reason"),
    [
        pytest.param("def f(a):\n    return 1 / 0", "1", "run", id="R4 V6 raises"),
        pytest.param(BAD, "1", "run", id="V6 raises what is named without Error"),
        pytest.param("def f(a):\n    return next(iter(()))", "1", "run", id="V6 StopIteration"),
        pytest.param("class Bad(Exception): pass\ndef f(a):\n    raise Bad", "1", "screen", id="no value returned"),
        pytest.param("import random\ndef f(a):\n    return random.random()", "1", "screen", id="V8 banned"),
        pytest.param("import os\ndef f(a):\n    return os.getpid()", "1", "screen", id="V8 os"),
        pytest.param(
            "from os.path import join\ndef f(a):\n    return join(a, a)", "'u'", "screen", id="V8 a part of os"
        ),
        pytest.param("import random as r\ndef f(a):\n    return r.random()", "1", "screen", id="V8 under another name"),
        pytest.param("def f(a):\n    random = a\n    return random", "1", "", id="V8 a variable is no import"),
        pytest.param("def g(a):\n    return a", "1", "screen", id="no f"),
        pytest.param(IDENTITY, "1) or f(1", "input_literal", id="V2 injection"),
        pytest.param(IDENTITY, "__import__('os')", "input_literal", id="V2 call"),
        pytest.param(IDENTITY, "None", "output_literal", id="V7 None"),
        pytest.param("def f(a):\n    return float('nan')", "1", "output_literal", id="V7 NaN"),
        pytest.param("def f(a):\n    return float('inf')", "1", "output_literal", id="V7 infinity"),
        pytest.param(COUNTER, "'aab'", "output_literal", id="V7 a Counter"),
        pytest.param("def f(a):\n    return object()", "1", "output_literal", id="V7 an object"),
        pytest.param("def f(a):\n    return 'x' * 5000", "1", "output_size", id="V7 long"),
        pytest.param("def f(a):\n    return list({'a', 'b', 'c', 'd'})", "1", "determinism", id="V5 hash order"),
        pytest.param("n = 0\ndef f(a):\n    global n\n    n += 1\n    return n", "1", "determinism", id="V4 counter"),
        pytest.param(
            "def parse_input(x): return x\ndef f(a):\n    return parse_input(a)", "1", "", id="V9 a name is no call"
        ),
    ],
)
def test_the_first_reason_why_a_proposal_is_no_task(sandbox: Sandbox, program: str, argument: str, reason: str) -> None:
    assert reasons(verdicts(sandbox, [("ded", program, (argument,))])) == [reason]


def test_v10_an_endless_program_is_no_task_and_the_next_one_is(sandbox: Sandbox) -> None:
    endless = "def f(a):\n    while True: pass\n    return a"
    found = reasons(verdicts(sandbox, [("ded", endless, ("1",)), ("ded", IDENTITY, ("1",))]))
    assert found[0] in {"run", "determinism"} and found[1] == ""


def test_v10_a_list_of_4_gib_is_no_task_and_the_next_one_is(sandbox: Sandbox) -> None:
    large = "def f(a):\n    return len([0] * 2**29)"
    assert reasons(verdicts(sandbox, [("ded", large, ("1",)), ("ded", IDENTITY, ("1",))])) == ["run", ""]


def test_b10_the_same_task_twice_in_a_batch_is_found_once(sandbox: Sandbox) -> None:
    same = ("ded", IDENTITY, ("1",))
    again = ("ded", "def f(a):  # the same\n    return (a)", ("1",))
    other = ("abd", IDENTITY, ("1",))
    assert reasons(verdicts(sandbox, [same, again, other])) == ["", "repeat", ""]


def test_a_task_of_the_buffer_is_a_repeat(sandbox: Sandbox) -> None:
    known = {task: Buffer(9) for task in ("abd", "ded", "ind")}
    known["ded"].add(make_entry("ded", IDENTITY, ["1"], ["1"], step=1, source="selfplay"))
    assert reasons(verdicts(sandbox, [("ded", IDENTITY, ("1",)), ("ded", IDENTITY, ("2",))], known=known)) == [
        "repeat",
        "",
    ]


def test_an_induction_proposal_needs_all_its_inputs_to_run_and_half_of_them_to_differ(sandbox: Sandbox) -> None:
    found = verdicts(
        sandbox,
        [
            ("ind", IDENTITY, ("1", "2", "3", "3")),
            ("ind", IDENTITY, ("1", "1", "1", "1")),
            ("ind", IDENTITY, ("1", "2", "3")),
            ("ind", "def f(a):\n    return 6 // a", ("1", "2", "3", "0")),
        ],
    )
    assert reasons(found) == ["", "inputs", "inputs", "run"]


def test_malformed_text_runs_nothing(sandbox: Sandbox) -> None:
    found = check([Candidate("ded", None)], sandbox, {"ded": Buffer(1)}, step=1, rules=Rules())
    assert reasons(found) == ["malformed"]


def test_held_out_programs_are_refused_whatever_their_spacing(sandbox: Sandbox) -> None:
    is_held_out = held_out_of(Profile(name="t"))
    for problem in held_out_problems(20):
        assert is_held_out(problem.item.program) and is_held_out(problem.item.program + "  # mine\n")
    program = held_out_problems(1)[1].item.program
    assert reasons(verdicts(sandbox, [("ded", program, ("'uvw'",))], is_held_out=is_held_out)) == ["held_out"]


def test_the_pocket_model_is_not_asked_about_empty_outputs(sandbox: Sandbox) -> None:
    rule = output_rule_of("pocket")
    found = verdicts(sandbox, [("ded", "def f(a):\n    return a[1:]", (text,)) for text in ("'u'", "'uv'")],
                     is_output_allowed=rule)  # fmt: skip
    assert reasons(found) == ["output_rule", ""]


def task(kind: Task, program: str, inputs: list[str], outputs: list[str]) -> Entry:
    return make_entry(kind, program, inputs, outputs, step=1, source="selfplay")


def judged(sandbox: Sandbox, entry: Entry, *texts: str | None, shown: int = 3) -> list[str]:
    found, _ = Judge(sandbox, shown).judge([Answer(entry, text) for text in texts])
    return [verdict.value for verdict in found]


def test_v11_any_input_that_gives_the_output_is_right(sandbox: Sandbox) -> None:
    entry = task("abd", ABS, ["3"], ["3"])
    answers = ("-3", "3", "4", "'3'", "-3) or f(3", None)
    assert judged(sandbox, entry, *answers) == ["correct", "correct", "wrong", "wrong", "wrong", "wrong"]


def test_one_answer_that_ends_its_process_does_not_spoil_the_others(sandbox: Sandbox) -> None:
    entry = task("abd", "def f(a):\n    while a == 0: pass\n    return abs(a)", ["3"], ["3"])
    assert judged(sandbox, entry, "0", "-3", "3", "5") == ["wrong", "correct", "correct", "wrong"]


def test_many_answers_that_end_their_process_neither_spoil_a_right_one_nor_retire_the_task(impatient: Sandbox) -> None:
    entry = task("abd", f"def f(a):\n    if a < 0:\n        {BREAKS}\n    return abs(a)", ["3"], ["3"])
    answers = [Answer(entry, str(-number)) for number in range(1, 13)] + [Answer(entry, "3")]
    found, retired = Judge(impatient, 3).judge(answers, recheck=[entry])
    assert found == [Correctness.WRONG] * 12 + [Correctness.CORRECT]
    assert not retired


def test_of_an_induction_program_that_failed_no_other_pair_is_run(impatient: Sandbox) -> None:
    numbers = [str(number) for number in range(10)]
    entry = task("ind", IDENTITY, numbers, numbers)
    broken = f"def f(a):\n    {BREAKS}\n    return a"
    for kind, executions in (("binary", 1), ("accuracy", 5)):
        judge = Judge(impatient, None, induction=kind)  # type: ignore[arg-type]
        assert judge.judge([Answer(entry, broken)])[0] == [Correctness.WRONG]
        assert judge.executions == executions


def test_a_program_that_fails_one_induction_task_may_solve_another(impatient: Sandbox) -> None:
    low, high = ([str(number + start) for number in range(10)] for start in (0, 10))
    one, other = task("ind", IDENTITY, low, low), task("ind", IDENTITY, high, high)
    program = f"def f(a):\n    if a < 10:\n        {BREAKS}\n    return a"
    found, _ = Judge(impatient, None).judge([Answer(one, program), Answer(other, program)])
    assert found == [Correctness.WRONG, Correctness.CORRECT]


def test_v1_arguments_may_be_named(sandbox: Sandbox) -> None:
    program = "def f(numbers, k=1):\n    return [n * k for n in numbers]"
    (found,) = verdicts(sandbox, [("ded", program, ("numbers=[2, 3], k=2",))])
    assert found.entry is not None and found.entry.outputs == ("[4, 6]",)
    assert judged(sandbox, task("abd", program, ["[4], 1"], ["[4]"]), "k=2, numbers=[2]") == ["correct"]


def test_v7_none_is_an_output_only_where_the_profile_says_so(sandbox: Sandbox) -> None:
    proposal: list[tuple[Task, str, tuple[str, ...]]] = [("ded", IDENTITY, ("None",))]
    assert reasons(verdicts(sandbox, proposal, allow_none_output=True)) == [""]


def test_a_value_that_spells_a_special_token_is_refused_wherever_it_comes_from(sandbox: Sandbox) -> None:
    asked: list[tuple[Task, str, tuple[str, ...]]] = [
        ("ded", IDENTITY, ("'<|e' 'nd|>'",)),
        ("ded", "def f(a):\n    return a + 'nd|>'", ("'<|e'",)),
        ("ded", IDENTITY, ("'end'",)),
    ]
    found = verdicts(sandbox, asked, is_showable=lambda text: "<|end|>" not in text)
    assert reasons(found) == ["special_token", "special_token", ""]


def test_strict_types_tell_one_from_true(sandbox: Sandbox) -> None:
    entries = [task("ded", IDENTITY, ["1"], ["1"]), task("abd", IDENTITY, ["1"], ["1"])]
    found, _ = Judge(sandbox, 3, strict_types=True).judge([Answer(entry, "1.0") for entry in entries])
    assert found == [Correctness.WRONG] * 2


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("{1, 2}", "{2, 1}", "correct"),
        ("1", "1.0", "correct"),
        ("(1, 2)", "[1, 2]", "wrong"),
        ("'2'", "'1+1'", "wrong"),
        ("'2'", "1+1", "wrong"),
        ("5", "Always()", "wrong"),
    ],
)
def test_v12_deduction_compares_values(sandbox: Sandbox, gold: str, answer: str, verdict: str) -> None:
    assert judged(sandbox, task("ded", IDENTITY, [gold], [gold]), answer) == [verdict]


def test_r6_v13_induction_is_judged_by_hidden_pairs_alone(sandbox: Sandbox) -> None:
    entry = task("ind", "def f(a):\n    return a + 1", ["1", "2", "3", "4"], ["2", "3", "4", "5"])
    only_hidden = "def f(a):\n    return 5 if a == 4 else 0"
    banned = "import subprocess\ndef f(a):\n    return a + 1"
    assert judged(sandbox, entry, only_hidden, entry.program, IDENTITY, banned) == [
        "correct",
        "correct",
        "wrong",
        "wrong",
    ]


def test_b14_half_of_few_pairs_is_hidden(sandbox: Sandbox) -> None:
    entries = [task("ind", IDENTITY, [str(i) for i in range(n)], [str(i) for i in range(n)]) for n in (10, 6, 3)]
    assert [Judge(sandbox, None).num_shown_of(entry) for entry in entries] == [5, 3, 1]
    assert [Judge(sandbox, 5).num_shown_of(entry) for entry in entries] == [5, 5, 1]
    calls = kind_of("ind").calls(entries[0], IDENTITY, Judge(sandbox, None).num_shown_of(entries[0]))
    assert [arguments for _, arguments in calls] == ["5", "6", "7", "8", "9"]


def test_r10_the_same_answer_runs_once_and_counts_each_time(sandbox: Sandbox) -> None:
    judge = Judge(sandbox, 3)
    found, _ = judge.judge([Answer(task("abd", ABS, ["3"], ["3"]), "-3")] * 5)
    assert found == [Correctness.CORRECT] * 5 and judge.executions == 1


BY_THE_MACHINE = pytest.mark.parametrize(
    "ended",
    [
        pytest.param(Result(Status.TIMEOUT, from_wall=True), id="by the wall clock"),
        pytest.param(Result(Status.KILLED, is_lost=True), id="the sandbox itself failed"),
    ],
)


class Ended:
    """A sandbox whose machine ends every call."""

    def __init__(self, ended: Result) -> None:
        self._ended = ended

    def execute_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        return [[self._ended] * len(case.inputs) for case in cases]

    def check_deterministic_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        return [[agree((one, one), one) for one in results] for results in self.execute_many(cases)]


@BY_THE_MACHINE
def test_r8_what_the_machine_decided_is_unknown_and_not_wrong(ended: Result) -> None:
    judge = Judge(Ended(ended), 3)  # type: ignore[arg-type]
    found, retired = judge.judge([Answer(task("abd", ABS, ["3"], ["3"]), "-3")], [task("ded", ABS, ["1"], ["1"])])
    assert found == [Correctness.UNKNOWN] and not retired


@BY_THE_MACHINE
def test_r8_a_proposal_that_the_machine_ended_is_refused_for_a_reason_that_nobody_pays_for(ended: Result) -> None:
    asked = Candidate("ded", Proposal(ABS, ("1",)))
    (found,) = check([asked], Ended(ended), {"ded": ()}, step=1, rules=Rules())  # type: ignore[arg-type]
    assert found.reason in UNFAIR


class MostlySlow:
    """One call in five is answered, the others never are."""

    def __init__(self) -> None:
        self.calls = 0

    def execute_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        self.calls += sum(len(case.inputs) for case in cases)
        lost, fine = Result(Status.TIMEOUT, from_wall=True), Result(Status.OK, "9")
        return [[fine if text == "9" else lost for text in case.inputs] for case in cases]


def test_r8_a_program_of_which_most_pairs_were_lost_is_dropped_after_two_more_tries() -> None:
    numbers = [str(number) for number in range(10)]
    sandbox = MostlySlow()
    judge = Judge(sandbox, None)  # type: ignore[arg-type]
    found, _ = judge.judge([Answer(task("ind", IDENTITY, numbers, numbers), IDENTITY)])
    assert found == [Correctness.UNKNOWN]
    assert sandbox.calls == 5 + 4 + 4


@pytest.mark.parametrize(
    ("kind", "score"),
    [pytest.param("binary", 0.0), pytest.param("accuracy", 0.8), pytest.param("if_one_correct", 1.0)],
)
def test_r7_hidden_pairs_pay_by_the_profile_s_rule(sandbox: Sandbox, kind: Any, score: float) -> None:
    numbers = [str(number) for number in range(10)]
    wrong_once = "def f(a):\n    return 0 if a == 7 else a"
    entry = task("ind", IDENTITY, numbers, numbers)
    found, _ = Judge(sandbox, None, induction=kind).score([Answer(entry, wrong_once)])
    assert [one.score for one in found] == [score]


def test_n4_a_stored_task_that_gives_another_value_is_retired_and_pays_nobody(sandbox: Sandbox) -> None:
    wrong, right = task("ded", ABS, ["-3"], ["-3"]), task("ded", ABS, ["-2"], ["2"])
    found, retired = Judge(sandbox, 3).judge([Answer(wrong, "-3"), Answer(right, "2")], recheck=[wrong, right])
    assert found == [Correctness.UNKNOWN, Correctness.CORRECT] and retired == {wrong.key}
