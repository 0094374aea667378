"""Whole steps of self-play with real prompts, parsers and sandbox; only the model's words are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.workers.azr.small import said, scripted_tools, triplet
from workers.azr.buffers import Buffers
from workers.azr.metrics import advantage_metrics
from workers.azr.proposing import Tools
from workers.azr.rows import Collected, Row
from workers.azr.selfplay import SelfPlay
from workers.azr.trainer import warnings_of
from workers.azr.update import advantages_of
from workers.sandbox import Limits, Result, Sandbox, Status
from workers.tasks.seeds import seed_entries

TASKS = ("abd", "ded", "ind")
DOUBLE = "def f(a):\n    return a * 2"
INDUCTION = "".join(f"```input\n{number}\n```\n" for number in range(10)) + "```message\nfind it\n```"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


def kind_of(prompt: str) -> str:
    """Which of the six cells a prompt belongs to, by its headline."""
    headlines = {
        "whose output is hard": "propose ded", "whose input is hard": "propose abd", "write inputs": "propose ind",
        "deduce the output of": "solve ded", "deduce an input of": "solve abd", "deduce a program": "solve ind",
    }  # fmt: skip
    return next(name for words, name in headlines.items() if words in prompt)


class Play:
    """One step: `answers` says what the model writes in each cell, by the number of the request in it."""

    def __init__(self, directory: Path, sandbox: Sandbox, answers: dict[str, Callable[[int], str]], **azr: Any) -> None:
        seen: dict[str, int] = {}

        def script(prompt: str, seed: int) -> str:
            kind = kind_of(prompt)
            seen[kind] = seen.get(kind, 0) + 1
            return answers.get(kind, lambda number: "nonsense")(seen[kind] - 1)

        self.tools: Tools
        self.tools, self.engine = scripted_tools(directory, sandbox, script, **azr)
        self.buffers = Buffers(self.tools.profile.azr.tasks, 100, self.tools.profile.azr.novelty)
        for entry in seed_entries(self.tools.profile.azr.tasks, "azr"):
            self.buffers.of[entry.task].add(entry)

    def step(self, number: int = 1) -> Collected:
        return SelfPlay(self.tools, self.buffers, lambda stage: nullcontext()).collect(number)


def cell(collected: Collected, role: str, task: str) -> list[Row]:
    return [row for row in collected.rows if (row.role, row.task) == (role, task)]


def rewards_of(rows: list[Row]) -> list[float | None]:
    return [row.reward for row in rows]


ONE_TASK = {"tasks": ("ded",), "proposals_per_task": 1, "group_size": 8}


def right(times: int, gold: str = "'uu'") -> Callable[[int], str]:
    """The first so many answers are right."""
    return lambda number: said(f"```output\n{gold if number < times else 0}\n```")


def test_r3_a_valid_task_in_bad_tags_is_stored_and_its_proposer_paid_as_for_an_invalid_one(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    untagged = "so <answer>" + triplet(DOUBLE, "'u'") + "</answer>"
    play = Play(tmp_path, sandbox, {"propose ded": lambda n: untagged, "solve ded": right(4)}, **ONE_TASK)
    collected = play.step()
    assert rewards_of(cell(collected, "propose", "ded")) == [-1]
    (stored,) = collected.found
    assert (stored.program, stored.solve_rate) == (DOUBLE, 0.5)


def test_r4_a_program_that_raises_is_not_stored_however_well_it_is_written(tmp_path: Path, sandbox: Sandbox) -> None:
    text = said(triplet("def f(a):\n    return 1 // 0", "'u'"))
    collected = Play(tmp_path, sandbox, {"propose ded": lambda n: text}, **ONE_TASK).step()
    assert rewards_of(cell(collected, "propose", "ded")) == [-1]
    assert collected.found == [] and collected.metrics["invalid/run"] == 1


@pytest.mark.parametrize(
    ("successes", "reward"),
    [pytest.param(0, -0.5, id="R1 none"), pytest.param(2, 0.75, id="R1 two"), pytest.param(8, -0.5, id="R1 all")],
)
def test_a_proposer_is_paid_by_what_its_task_teaches(
    successes: int, reward: float, tmp_path: Path, sandbox: Sandbox
) -> None:
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": right(successes)}
    collected = Play(tmp_path, sandbox, answers, **ONE_TASK).step()
    assert rewards_of(cell(collected, "propose", "ded")) == [reward]


def test_r5_solvers_are_paid_for_form_and_value(tmp_path: Path, sandbox: Sandbox) -> None:
    texts = [said("```output\n'uu'\n```"), said("'u'"), "so <answer>'uu'</answer>", "no end"]
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": lambda n: texts[n]}
    azr = ONE_TASK | {"group_size": 4, "train_on_estimates": True}
    collected = Play(tmp_path, sandbox, answers, **azr).step()
    rows = cell(collected, "solve", "ded")
    assert rewards_of(rows) == [1, -0.5, -1, -1]
    names = ("reward", "reward_min", "reward_max", "malformed", "truncated", "tokens_max")
    counted = {name: collected.metrics[f"{name}/solve_ded"] for name in names}
    assert counted == {"reward": -0.375, "reward_min": -1, "reward_max": 1, "malformed": 0.5, "truncated": 0,
                       "tokens_max": max(len(row.completion_ids) for row in rows)}  # fmt: skip
    assert collected.metrics["timeouts"] == 0
    stds = advantage_metrics(rows, advantages_of(rows, "cell").values)
    assert stds == {"advantage_std/solve_ded": pytest.approx(1.0)}


def test_r9_an_estimate_looks_at_the_answer_alone(tmp_path: Path, sandbox: Sandbox) -> None:
    good, unclosed, bad = said("'uu'"), "so <answer>'uu'</answer>", said("'u'")
    texts = [good] * 4 + [unclosed] * 2 + [bad] * 2
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": lambda n: texts[n % 8]}
    collected = Play(tmp_path, sandbox, answers, **ONE_TASK).step()
    assert rewards_of(cell(collected, "propose", "ded")) == [0.25]
    assert collected.found[0].solve_rate == 6 / 8


def all_answers(solves: bool) -> dict[str, Callable[[int], str]]:
    """Each proposer writes valid new tasks; solvers know all answers, or none."""
    return {
        "propose ded": lambda n: said(triplet(DOUBLE, f"'u{n}'")),
        "propose abd": lambda n: said(triplet(DOUBLE, f"{n + 7}")),
        "propose ind": lambda n: said(INDUCTION),
        "solve ded": lambda n: said("```output\n'nobody'\n```"),
        "solve abd": lambda n: said("```input\n'nobody'\n```"),
        "solve ind": lambda n: said(f"```python\ndef f(a):\n    return {'a' if solves else 0}\n```"),
    }


def test_a10_a_full_step_has_b_rows_in_each_of_six_cells_and_the_estimates_are_not_among_them(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    play = Play(tmp_path, sandbox, all_answers(True))
    collected = play.step()
    assert {(role, task): len(cell(collected, role, task)) for role in ("propose", "solve") for task in TASKS} == {
        (role, task): 2 for role in ("propose", "solve") for task in TASKS
    }
    # Two new tasks for abduction and deduction, one for induction, each estimated 4 times; then 6 rows to train on.
    assert len(play.engine.prompts) == 6 + 4 * 5 + 6
    assert sorted(entry.task for entry in collected.found) == ["abd", "abd", "ded", "ded", "ind"]


@pytest.mark.parametrize(
    ("draws", "said"), [(False, ["all estimation rollouts of every new task are the same"]), (True, [])]
)
def test_O7_a_sampler_that_does_not_draw_raises_the_alarm(
    draws: bool, said: list[str], tmp_path: Path, sandbox: Sandbox
) -> None:
    answers = all_answers(True)
    if draws:
        answers["solve ded"] = lambda n: said_again(n)
    collected = Play(tmp_path, sandbox, answers).step()
    found = warnings_of(collected, collected.metrics)
    assert [text.partition(":")[0] for text in found] == said
    assert collected.metrics["identical_share"] == (3 / 5 if draws else 1)


def test_proposals_estimates_and_answers_are_drawn_at_the_training_temperature(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    """A greedy estimate of a task's solve rate is 0 or 1 whatever the task."""
    play = Play(tmp_path, sandbox, all_answers(True))
    collected = play.step()
    assert collected.found and len(play.engine.asked) == 2  # proposals; then estimates and answers
    temperature = play.tools.profile.sampling.temperature
    assert temperature != 1.0
    assert all(not how.greedy and how.temperature == temperature for how in play.engine.asked)


def said_again(number: int) -> str:
    """The same answer after another thought."""
    return said("```output\n'nobody'\n```", thought=f"thought {number}")


def test_induction_is_solved_by_the_hidden_half(tmp_path: Path, sandbox: Sandbox) -> None:
    collected = Play(tmp_path, sandbox, all_answers(True)).step()
    (problem,) = [entry for entry in collected.found if entry.task == "ind"]
    assert len(problem.inputs) == 10 and problem.message == "find it" and problem.solve_rate == 1
    assert rewards_of(cell(collected, "solve", "ind")) == [1, 1]


def test_a_step_without_any_valid_proposal_trains_on_what_there_is(tmp_path: Path, sandbox: Sandbox) -> None:
    play = Play(tmp_path, sandbox, {})
    collected = play.step()
    assert collected.found == [] and collected.metrics["invalid/malformed"] == 6
    assert rewards_of(collected.rows) == [-1] * 12
    assert {row.prompt_ids for row in cell(collected, "solve", "ded")} != set()
    advantages = advantages_of(collected.rows, "cell")
    assert advantages.degenerate == 6 and set(advantages.values) == {0}
    # One seed each, so the second row of a solver's cell repeats the first.
    assert collected.metrics["fill_with_replacement"] == 3


def test_a6_cells_of_equal_rewards_have_no_advantage_and_are_counted(tmp_path: Path, sandbox: Sandbox) -> None:
    collected = Play(tmp_path, sandbox, all_answers(False)).step()
    assert rewards_of(collected.rows) == [-0.5] * 12
    assert advantages_of(collected.rows, "cell").degenerate == 6


class Busy:
    """A sandbox whose machine is so busy that no program ends in time; proposals were looked at before."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.check_deterministic_many = sandbox.check_deterministic_many

    def execute_many(self, cases: Any) -> Any:
        return [[Result(Status.TIMEOUT, from_wall=True)] * len(case.inputs) for case in cases]


def test_r8_rows_that_the_machine_decided_are_dropped_and_nobody_is_paid(tmp_path: Path, sandbox: Sandbox) -> None:
    azr = {"tasks": ("ind",), "proposals_per_task": 1, "train_proposer": False}
    collected = Play(tmp_path, Busy(sandbox), all_answers(True), **azr).step()  # type: ignore[arg-type]
    assert rewards_of(collected.rows) == [None, None]
    assert warnings_of(collected, collected.metrics) == ["no rollout of this step could be judged: nothing was trained"]


@pytest.mark.parametrize(
    ("repeats", "reward", "stored"), [("flat", -0.5, 0), ("as_new", 0.75, 0)], ids=["flat", "as_new"]
)
def test_a_task_that_is_known_is_never_stored_twice_and_paid_by_choice(
    repeats: str, reward: float, stored: int, tmp_path: Path, sandbox: Sandbox
) -> None:
    identity = said(triplet("def f(a):\n    return a  # mine", "'Hello world'"))
    answers = {"propose ded": lambda n: identity, "solve ded": right(2, "'Hello world'")}
    collected = Play(tmp_path, sandbox, answers, repeats=repeats, **ONE_TASK).step()
    assert rewards_of(cell(collected, "propose", "ded")) == [reward]
    assert len(collected.found) == stored
    assert collected.metrics["dup_rate"] == collected.metrics["dup_rate/ded"] == 1


def test_a_task_whose_program_gave_another_output_within_the_step_is_not_stored(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": right(2)}
    play = Play(tmp_path, sandbox, answers, **ONE_TASK)
    assert len(play.step().found) == 1
    solve = SelfPlay.solve

    def retiring(self: SelfPlay, *arguments: Any) -> Any:
        solved, _, run = solve(self, *arguments)
        return solved, {one.wanted.entry.key for one in solved}, run

    monkeypatch.setattr(SelfPlay, "solve", retiring)
    collected = play.step()
    assert not collected.found and collected.retired


def test_the_same_triplet_for_two_tasks_is_paid_by_each_task_s_own_solvers(tmp_path: Path, sandbox: Sandbox) -> None:
    answers = {
        "propose ded": lambda n: said(triplet(DOUBLE, "'u'")),
        "propose abd": lambda n: said(triplet(DOUBLE, "'u'")),
        "solve ded": right(2),
        "solve abd": lambda n: said("```input\n'x'\n```"),
    }
    azr = ONE_TASK | {"tasks": ("abd", "ded")}
    collected = Play(tmp_path, sandbox, answers, **azr).step()
    assert rewards_of(cell(collected, "propose", "ded")) == [0.75]
    assert rewards_of(cell(collected, "propose", "abd")) == [-0.5]


def test_only_learnable_tasks_are_stored_where_the_profile_says_so(tmp_path: Path, sandbox: Sandbox) -> None:
    for rule, stored in (("all", 5), ("non_extremes", 0)):
        found = Play(tmp_path, sandbox, all_answers(False), buffer_filter=rule).step().found
        assert len(found) == stored


def test_proposers_are_shown_up_to_six_references_and_none_where_none_are_wanted(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    for wanted, shown in ((6, 3), (0, 0)):
        play = Play(tmp_path, sandbox, all_answers(False), references=wanted)
        for step in (1, 2):
            for entry in play.step(step).found:
                play.buffers.of[entry.task].add(entry)
        last = [prompt for prompt in play.engine.prompts if kind_of(prompt) == "propose ded"][-1]
        assert last.count("### Program") == shown


def test_composite_prompts_show_programs_to_build_on_and_the_task_holds_them(tmp_path: Path, sandbox: Sandbox) -> None:
    built = "def f(a):\n    return g_0(a) + '!'"
    answers = {"propose ded": lambda n: said(triplet(built, "'u'")), "solve ded": right(1, "'u!'")}
    azr = ONE_TASK | {"composite_from_step": 2, "composite_share": 1.0}
    play = Play(tmp_path, sandbox, answers, **azr)
    assert play.step(1).metrics["invalid/run"] == 1  # nobody gave it a g_0
    (entry,) = play.step(2).found
    assert entry.program.startswith("def g_0(a):\n    return a\n") and entry.outputs == ("'u!'",)
    asked = [prompt for prompt in play.engine.prompts if kind_of(prompt) == "propose ded"]
    assert ["has to call every one of them (g_0)" in prompt for prompt in asked] == [False, True]


def test_prompts_are_the_same_whoever_asks_again(tmp_path: Path, sandbox: Sandbox) -> None:
    first, second = (Play(tmp_path, sandbox, all_answers(True)) for _ in range(2))
    assert first.step().records() == second.step().records()
    assert first.engine.prompts == second.engine.prompts
