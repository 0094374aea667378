"""Models of other families through the daemon: the run reports what computes them, and engine and trainer agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.workers import harness as h
from tests.workers.families import write

SHORT = [
    "model.random_init=off", "run.max_cycles=1", "run.steps_per_cycle=1", "run.threads=1", "grpo.sent.enabled=false",
    "grpo.problems=4", "validation.examples_per_task=1", "sampling.max_completion_tokens=12",
]  # fmt: skip
FLOAT32 = ["model.dtype=float32", "model.quantization=none"]
WHOLE = [*FLOAT32, "adapter.rank=0", "optimizer.kind=adamw"]


def longhaul(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=280)


def run(name: str, root: Path, *changes: str) -> subprocess.CompletedProcess[str]:
    write(name, root / "model")
    overrides = [word for one in (*SHORT, f"model.path={root / 'model'}", *changes) for word in ("--set", one)]
    return longhaul("run", "--profile", "grpo-1.5b-8gb-debug", "--plain", *where_of(root), *overrides)


def where_of(root: Path) -> tuple[str, ...]:
    return "--run", "one", "--runs", str(root / "runs")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "computed_by", "changes"),
    [
        pytest.param("lfm2", "plain transformers", WHOLE, id="a hybrid"),
        pytest.param("phi3, partial", "own code", [], id="fused layers in 4 bits"),
        pytest.param("gemma3_text, two ropes, cap", "own code", WHOLE, id="all weights", marks=pytest.mark.exhaustive),
        pytest.param("qwen3_moe", "plain transformers", WHOLE, id="experts", marks=pytest.mark.exhaustive),
        pytest.param("smollm3", "own code", FLOAT32, id="an adapter", marks=pytest.mark.exhaustive),
    ],
)
def test_a_family_is_trained_by_what_computes_it_and_the_run_reports_that(
    name: str, computed_by: str, changes: list[str], tmp_path: Path
) -> None:
    done = run(name, tmp_path, *changes)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("model: plain transformers")]
    assert len(said) == (computed_by == "plain transformers")
    attempt = tmp_path / "runs/one/cycles/0001/attempt-1"
    (path,), (step,) = h.events_at(attempt, "path"), h.events_at(attempt, "step")
    assert path.data["text"].startswith(computed_by)
    assert ("rollouts by hf" in path.data["text"]) == bool(said)
    if said:
        assert said[0].removeprefix("model: ") in longhaul("status", *where_of(tmp_path)).stdout
    assert step.data["grad_norm"] > 0
    assert len(h.events_at(tmp_path / "runs/one/cycles/0001/validate-1", "path")) == 1  # validation probes too
    if changes:  # one update a step, so what the engine wrote down is what the trainer finds, but for rounding
        assert path.data["engine_off"] < 1e-5 and path.data["trainer_off"] < 1e-5
        assert step.data["mismatch_max"] < 1e-4


@pytest.mark.timeout(300)
def test_a_model_that_nothing_computes_ends_the_run_with_66(tmp_path: Path) -> None:
    done = run("llama, dynamic rope", tmp_path, *WHOLE)
    assert done.returncode == ExitCode.INPUT, done.stdout + done.stderr
    assert "changes beyond 16 tokens" in done.stdout + done.stderr


def test_a_plan_names_the_engine_and_the_path_that_the_model_gets(tmp_path: Path) -> None:
    write("mixtral", tmp_path / "model")
    plan = ("plan", "--profile", "azr-3b-qlora", "--runs", str(tmp_path / "runs"), "--set")
    said = longhaul(*plan, f"model.path={tmp_path / 'model'}", "--set", "sampling.engine=native").stdout
    assert "rollouts by hf\n" in said
    assert "path: plain transformers (the architecture mixtral is not one of" in said
    facts = json.loads(longhaul("--json", *plan, f"model.path={tmp_path / 'model'}").stdout)
    assert facts["engine"] == "hf" and facts["path"].startswith("plain transformers")
