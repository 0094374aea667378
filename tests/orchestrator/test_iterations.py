"""Two whole runs, one after the other: the second begins with everything that the first one left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from state.layout import RunDir
from tests import REPOSITORY
from workers.data.data_set import read_data_set
from workers.pocket import language

KNOBS = {"run.max_cycles": 1, "run.steps_per_cycle": 2, "run.threads": 1, "azr.proposals_per_task": 4,
         "validation.examples_per_task": 3, "data.sources": '["previous"]'}  # fmt: skip


def play(name: str, folder: Path, **knobs: str) -> RunDir:
    given = {**KNOBS, **{knob.replace("__", "."): value for knob, value in knobs.items()}}
    sets = [part for knob, value in given.items() for part in ("--set", f"{knob}={value}")]
    words = [sys.executable, "-m", "orchestrator", "run", "--profile", "pocket-debug", "--plain", "--run", name, *sets]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": ""}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tasks      runs/{name}/data/next.jsonl: " in done.stdout
    return RunDir(folder / "runs" / name)


@pytest.mark.slow
def test_a_run_goes_on_from_what_the_one_before_it_found(tmp_path: Path) -> None:
    first, second = play("first", tmp_path), play("second", tmp_path)
    assert not first.imported.exists(), "there was no previous run"
    left = {(one.task, one.key) for one in read_data_set(first.next_input).records}
    taken = read_data_set(second.imported)
    assert {(one.task, one.key) for one in taken.records} == left and len(left) > 3
    assert {one.origin.run for one in taken.records} == {"first"} and all(one.origin.model for one in taken.records)
    assert [facts.source for facts in taken.header.imports] == ["first"]
    after = {(one.task, one.key): one.origin.run for one in read_data_set(second.next_input).records}
    assert left < set(after), "and adds its own"
    assert {after[key] for key in left} == {"first"} and {after[key] for key in set(after) - left} == {"second"}
    head = max(second.checkpoints.glob("c0001-*"))
    rows = [json.loads(row) for row in (head / "buffers.jsonl").read_text().splitlines()]
    assert {(row["task"], row["key"]) for row in rows} == set(after), "self-play began with all of it"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_run_on_a_file_of_tasks_hands_on_what_it_trained_on(tmp_path: Path) -> None:
    lines = [
        {"task": "ded", "program": f"def f(a):\n    b = a + '{letter}'\n    return b", "inputs": ["'uvw'"]}
        for letter in "uvwxyUVWXY"
    ]
    source = tmp_path / "tasks.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines if not language.is_held_out(line["program"])))
    given = {line["program"] for line in lines if not language.is_held_out(line["program"])}
    first = play("first", tmp_path, data__tasks=str(source), data__sources="[]")
    handed = {one.program for one in read_data_set(first.next_input).records}
    assert handed <= given and len(handed) == min(8, len(given)), "four tasks a step, two steps, and no identity"
    second = play("second", tmp_path)
    assert {one.program for one in read_data_set(second.imported).records} == handed
