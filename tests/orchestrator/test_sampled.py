"""What the model wrote, as a person reads it: from the store and from rollout files, harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rollout_texts import newest_file, sample_of
from orchestrator.sample_reader import SampleReader
from orchestrator.sampled import Sample, entry_of, sample_entries, tasks_of
from state.layout import RunDir
from tests.builders import build_store
from workers.line_contract import RolloutText

TASK = {"task": "ded", "step": 7, "program": "def f(a):\n    return a", "input": "1", "output": "1", "solve_rate": 0.5}


def rollout(role: str = "", **changes: Any) -> Sample:
    given: dict[str, Any] = {
        "pieces": [(True, "\\boxed{42}")], "answer": "42", "tokens": 4, "reward": 1.0, "parts": {}, "is_correct": True,
        "is_answered": True, "is_cut": False, "failure": "",
    }  # fmt: skip
    return sample_of(RolloutText(**{**given, **changes}), 3, role, "", "6 * 7?")


def test_a_task_shows_program_answer_and_how_many_are_right() -> None:
    (sample,) = tasks_of([TASK])
    assert entry_of(sample).lines[:4] == (
        "task deduction · step 7 · 50 % of answers are right",
        "  program  def f(a):",
        "               return a",
        "  input    1",
    )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "right"),
        ({"is_correct": False}, "wrong"),
        ({"is_correct": False, "is_answered": False}, "no answer found"),
        ({"is_cut": True, "is_correct": False}, "wrong, cut at the limit"),
        ({"role": "propose"}, "a valid new task"),
        ({"role": "propose", "is_correct": False}, "no valid task"),
        ({"failure": "it raised"}, "right, not judged: it raised"),
    ],
)
def test_a_rollout_has_a_verdict(changes: dict[str, Any], verdict: str) -> None:
    assert (rollout(**changes).verdict, rollout(**changes).reward) == (verdict, 1.0)


def test_a_rollout_shows_prompt_answer_and_what_was_found_in_it() -> None:
    assert rollout().texts == (("prompt", "6 * 7?"), ("answer", "\\boxed{42}"), ("found", "42"))


def test_what_a_model_wrote_steers_nothing_and_long_texts_are_cut() -> None:
    lines = entry_of(rollout(pieces=[(True, "\x1b[2Jx\x07" + "y" * 5000)])).lines
    assert all(line.isprintable() for line in lines)
    assert any("more characters" in line for line in lines)


def test_a_search_keeps_what_contains_it() -> None:
    assert [entry.lines[0][:4] for entry in sample_entries([rollout(), *tasks_of([TASK])], "RETURN")] == ["task"]


def test_only_a_whole_file_is_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step, trailer in ((5, True), (6, False)):
        path = run.rollout_file(2, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"step": step}, {"group": 0}, *([{"sha256": "0" * 64}] if trailer else [])]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert newest_file(run, 3) == run.rollout_file(2, 5)


def test_the_newest_file_is_that_of_the_highest_step_also_beyond_a_million(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (999_998, 999_999, 1_000_000):
        run.rollout_file(2, step).parent.mkdir(parents=True, exist_ok=True)
        run.rollout_file(2, step).write_text(json.dumps({"sha256": "0" * 64}))
    assert newest_file(run, 2) == run.rollout_file(2, 1_000_000)


def test_another_process_reads_them_meanwhile(tmp_path: Path) -> None:
    reader = SampleReader(build_store(tmp_path / "night"))
    assert reader.poll() is None, "nobody waits for it"
    process = reader._process
    assert process is not None and process.stdout is not None
    while reader.poll() is None:
        process.poll()
    assert reader.samples and {one.kind for one in reader.samples} == {"task"}
    reader.close()
