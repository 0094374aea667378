"""What the model wrote, as a person reads it: from the store and from rollout files, harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rollout_texts import newest_file, rows_of, sample_of
from orchestrator.sample_reader import SampleReader
from orchestrator.sampled import entry_of, sample_entries, tasks_of
from state.layout import RunDir
from tests.builders import build_store

TASK = {"task": "ded", "step": 7, "program": "def f(a):\n    return a", "input": "1", "output": "1", "solve_rate": 0.5}


def spelled(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def row(**more: Any) -> dict[str, Any]:
    given = {"prompt_ids": [63], "completion_ids": [52, 50], "reward": 1.0, "is_correct": True, "finish_reason": "stop"}
    return {**given, **more}


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
        ({"finish_reason": "length", "is_correct": False}, "wrong, cut at the limit"),
        ({"role": "propose"}, "a valid new task"),
        ({"role": "propose", "is_correct": False}, "no valid task"),
    ],
)
def test_a_rollout_has_a_verdict(changes: dict[str, Any], verdict: str) -> None:
    sample = sample_of(row(**changes), 3, spelled)
    assert (sample.verdict, sample.reward, sample.texts) == (verdict, 1.0, (("prompt", "?"), ("answer", "42")))


def test_what_a_model_wrote_steers_nothing_and_long_texts_are_cut() -> None:
    hostile = sample_of(row(completion_ids=[ord(one) for one in "\x1b[2Jx\x07" + "y" * 5000]), 3, spelled)
    lines = entry_of(hostile).lines
    assert all(line.isprintable() for line in lines)
    assert any("more characters" in line for line in lines)


def test_a_search_keeps_what_contains_it() -> None:
    samples = [sample_of(row(), 3, spelled), *tasks_of([TASK])]
    assert [entry.lines[0][:4] for entry in sample_entries(samples, "RETURN")] == ["task"]


def test_only_a_whole_file_is_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step, trailer in ((5, True), (6, False)):
        path = run.rollout_file(2, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"step": step}, row(), *([{"sha256": "0" * 64}] if trailer else [])]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = newest_file(run, 3)
    assert found == run.rollout_file(2, 5)
    assert [one["completion_ids"] for one in rows_of(found)] == [[52, 50]]


def test_another_process_reads_them_meanwhile(tmp_path: Path) -> None:
    reader = SampleReader(build_store(tmp_path / "night"))
    assert reader.poll() is None, "nobody waits for it"
    process = reader._process
    assert process is not None and process.stdout is not None
    while reader.poll() is None:
        process.poll()
    assert reader.samples and {one.kind for one in reader.samples} == {"task"}
    reader.close()
