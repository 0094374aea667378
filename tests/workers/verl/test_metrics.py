"""verl's JSON lines as our steps."""

from __future__ import annotations

import json
from pathlib import Path

from tests.workers.verl.profiles import debug
from workers.verl.metrics import Line, step_metrics, steps
from workers.verl.tail import Tail


def test_a_line_counts_once_its_end_is_there_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert list(steps(tail)) == []
    whole = json.dumps({"step": 1, "data": {"a": 1.5, "b": "text"}}).encode() + b"\n"
    path.write_bytes(whole + b'{"step": 2, "da')
    assert list(steps(tail)) == [Line(1, {"a": 1.5})]
    assert list(steps(tail)) == []
    with path.open("ab") as file:
        file.write(b'ta": {}}\n')
    assert list(steps(tail)) == [Line(2, {})]


def test_a_line_that_is_no_record_of_a_step_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'no JSON\n[1]\n{"step": 3}\n{"step": "x", "data": {}}\n{"step": 4, "data": {"a": 1}}\n')
    assert [line.step for line in steps(Tail(path))] == [4]


def test_a_step_has_our_names_and_rates() -> None:
    found = step_metrics(
        debug(),
        {
            "critic/score/mean": 0.25,
            "response_length/mean": 10.0,
            "timing_s/gen": 2.0,
            "timing_s/update_actor": 4.0,
            "actor/pg_clipfrac": 0.1,
            "actor/grad_norm": float("nan"),
            "actor/perf/max_memory_allocated_gb": 2.0,
            "verl/own": 1.0,
        },
    )
    assert found["accuracy"] == found["reward"] == 0.25
    assert found["tokens"] == 160  # 4 groups of 4 rollouts
    assert (found["tokens_per_s"], found["train_tokens_per_s"]) == (80.0, 40.0)
    assert found["clip_fraction"] == 0.1 and found["memory/train/allocated"] == 2 << 30
    assert "grad_norm" not in found and "verl/own" not in found
