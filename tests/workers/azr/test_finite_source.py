"""A run on a file of tasks holds, shows and hands on what it trained on, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiles.schema import Azr, Data
from tests.workers import harness as h
from tests.workers.data.given import line, write
from workers.azr.trainer import AzrTrainer
from workers.contract import CheckpointRef, Outcome, WorkerSpec
from workers.control import Control
from workers.cycle.train import train
from workers.pocket import language
from workers.runtime import carry_out
from workers.sandbox import Sandbox

PROGRAMS = [
    program
    for letters in ("uv", "vw", "wx", "xy", "yu", "uw", "vx")
    if not language.is_held_out(program := f"def f(a):\n    b = a + '{letters[0]}{letters[1].upper()}'\n    return b")
][:4]


def done(spec: WorkerSpec, sandbox: Sandbox) -> CheckpointRef:
    carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
    result = h.result_of(spec)
    assert result.outcome is Outcome.DONE and result.checkpoint is not None, result.error
    return result.checkpoint


def rows(root: Path, checkpoint: CheckpointRef) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (root / checkpoint.path / "buffers.jsonl").read_text().splitlines()]


def test_its_buffers_hold_what_it_trained_on_and_a_resumed_one_the_same_bytes(tmp_path: Path, sandbox: Sandbox) -> None:
    """Two tasks a step: the first step knows two of four, the third begins the file once more and finds nothing new."""
    source = write(tmp_path / "t.jsonl", *(line(program, "'uvw'") for program in PROGRAMS))
    profile = h.tiny_profile(azr=Azr(proposals_per_task=2, group_size=2, seed_tasks=50), data=Data(tasks=str(source)))
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for root in (whole, halves):
        root.mkdir()
    head = done(h.make_spec(whole, profile, head=None, end_step=1, cycle=0), sandbox)
    assert rows(whole, head) == [], "it seeds nothing"
    spec = h.make_spec(whole, profile, head=head, end_step=4)
    end = done(spec, sandbox)
    assert {row["program"] for row in rows(whole, end)} == set(PROGRAMS), "and not the identity"
    assert all(0 <= row["solve_rate"] <= 1 and row["source"] == "import" for row in rows(whole, end))
    told = [len(event.data["tasks"]) for event in h.events_of(spec, "examples")]
    assert told == [2, 2]

    start = done(h.make_spec(halves, profile, head=None, end_step=1, cycle=0), sandbox)
    first = done(h.make_spec(halves, profile, head=start, end_step=2), sandbox)
    assert len(rows(halves, first)) == 2
    second = done(h.make_spec(halves, profile, head=first, end_step=4, cycle=2), sandbox)
    assert rows(halves, second) == rows(whole, end)
