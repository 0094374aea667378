"""A run on rows without answers: its own reward judges what is held out, in validations and in `evaluate` alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.trend import panel_of
from profiles.errors import ExitCode
from state.layout import RunDir
from state.reader import Reader
from tests import REPOSITORY
from workers.pocket.word_problems.problems import draw_problems

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FUNCTION = """
def odd(problem, completion, facts):
    return 0.25 + 0.5 * (facts["tokens"] % 2) + 0.25 * (problem.level == 1)
"""
PROFILE = """
extends = "pocket-grpo-debug"
[run]
steps_per_cycle = 1
device = "cpu"
threads = 1
[data]
tasks = "own.jsonl"
held_out = 0.3
[grpo]
rewards = ["mine.py:odd"]
[grpo.reward]
solved_at = 0.75
[validation]
suites = ["held-out"]
examples_per_task = 100
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words], cwd=folder, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": ""},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of two cycles."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(FUNCTION)
    rows = [{"prompt": story.text, "level": number % 2} for number, story in enumerate(draw_problems(80))]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own.toml").write_text(PROFILE)
    done = command(folder, "run", "--profile", "own.toml", "--run", "a", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", mean reward 0." in done.stdout + done.stderr
    return folder


def evaluated(folder: Path, *words: str) -> dict[str, Any]:
    done = command(folder, "evaluate", "--run", "a", "--on", "held-out", "--json", *words)
    assert done.returncode == 0, done.stderr
    metrics: dict[str, Any] = json.loads(done.stdout)["suites"][0]["metrics"]["own"]
    return metrics


def test_the_solved_share_is_what_the_paired_test_and_the_best_checkpoint_go_by(folder: Path) -> None:
    run = RunDir(folder / "runs/a")
    reader = Reader.open(run)
    history = reader.history()
    cycles = [one for one in history.recent if one.validations]
    panel = panel_of(cycles)
    assert len(cycles) == 3 and panel.is_paired and panel.num_problems >= 10
    own = [one.validations[0].metrics["own"] for one in cycles]
    assert panel.scores == pytest.approx([(one["accuracy"] + one["sampled_accuracy"]) / 2 for one in own])
    assert all(0 < one["accuracy"] < 1 and 0.25 <= one["mean_reward"] <= 1 for one in own)
    best = json.loads(run.best.read_bytes())
    assert best["accuracy"] == max(one["accuracy"] for one in own) == best["correct"] / best["n"]
    reader.close()
    lines = [line for path in run.root.glob("cycles/*/validate-*/events.jsonl") for line in path.open()]
    told = [one["data"]["metrics"]["own"] for one in map(json.loads, lines) if one["type"] == "validation"]
    assert sorted(told, key=str) == sorted(own, key=str)


def test_evaluate_gives_what_the_validation_of_the_same_checkpoint_gave(folder: Path) -> None:
    reader = Reader.open(RunDir(folder / "runs/a"))
    last = reader.history().last_validation
    reader.close()
    assert last is not None
    found = evaluated(folder)
    for name in ("n", "correct", "accuracy", "low", "high", "mean_reward"):
        assert found[name] == last.metrics["own"][name]
    sampled = evaluated(folder, "--samples", "2")
    assert sampled["pass_at_2"] >= sampled["pass_at_1"] and 0.25 <= sampled["mean_reward"] <= 1
    shown = [command(folder, word, "--run", "a").stdout for word in ("status", "report")]
    assert "mean reward" in shown[0]
    assert "Mean reward of greedy answers" in (folder / "runs/a/report.html").read_text()


def test_evaluate_asks_again_by_a_changed_function_and_names_one_that_fails(folder: Path) -> None:
    file = folder / "mine.py"
    file.write_text("def odd(problem, completion, facts):\n    return 1.0\n")
    assert evaluated(folder)["accuracy"] == 1.0
    file.write_text("def odd(problem, completion, facts):\n    raise ValueError('no')\n")
    done = command(folder, "evaluate", "--run", "a", "--on", "held-out")
    assert done.returncode == ExitCode.REWARD
    assert "mine.py:odd failed on row" in done.stderr and "ValueError: no" in done.stderr
    assert "every answer so far" in done.stderr
    refused = command(folder, "evaluate", "--run", "a", "--on", "held-out", "--style", "plain")
    assert refused.returncode == ExitCode.INPUT and "not in the style plain" in refused.stderr
