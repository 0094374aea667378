"""evaluate on what people have: a checkpoint of an adapter, and a model directory of another architecture."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.workers.azr.small import VOCABULARY, write_tokenizer
from tests.workers.suites.samples import write_data

WEIGHTS = REPOSITORY / "workers" / "pocket" / "weights"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def command(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words], cwd=cwd, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_DATA": "", **environment},
    )  # fmt: skip


def completions(folder: Path, evaluation: str = "*") -> dict[str, list[str]]:
    lines = [
        json.loads(line) for path in folder.glob(f"{evaluation}/*.jsonl") for line in path.read_text().splitlines()
    ]
    return {line["outcome"]["question_id"]: line["completions"] for line in lines}


def test_a_checkpoint_of_an_adapter_answers_with_its_adapter_over_its_own_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(WEIGHTS, base)
    knobs = [
        "run.steps_per_cycle=1", "run.threads=1", f"model.path={base}", "adapter.rank=4",
        "optimizer.learning_rate=0.05", "optimizer.final_learning_rate=0", "optimizer.decay_steps=0",
        "optimizer.warmup_steps=0", "azr.seed_tasks=1", "validation.examples_per_task=2", "stagnation.min_cycles=9",
    ]  # fmt: skip
    settings = [word for knob in knobs for word in ("--set", knob)]
    trained = command("run", "--plain", "--profile", "pocket-debug", "--run", "a", "--max-cycles", "1", *settings,
                      cwd=tmp_path)  # fmt: skip
    assert trained.returncode == 0, trained.stdout + trained.stderr
    words = ("evaluate", "--on", "pocket", "--examples", "4", "--max-new-tokens", "24", "--json")
    found = {}
    for step in ("0", "1"):
        done = command(*words, "--run", "a", "--checkpoint", step, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found[step] = completions(tmp_path / "runs/a/evaluations", f"step-{step}-*")
    plain = command(*words, "--model", str(base), "--style", "run", "--out", "plain", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert found["0"] == completions(tmp_path / "plain"), "an adapter that is zero is its base"
    assert found["1"].keys() == found["0"].keys() and found["1"] != found["0"], "the trained one was heard"
    shown = command("status", "--run", "a", cwd=tmp_path).stdout
    assert "evaluated   pocket" in shown and "(step 1, greedy" in shown

    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\1\1\1\1")
    other = command(*words, "--run", "a", "--checkpoint", "1", "--seed", "7", "--samples", "2", cwd=tmp_path)
    assert other.returncode == ExitCode.INPUT and "trained on another base model" in other.stderr


def write_llama(directory: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(directory, chat_template=None)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def test_any_architecture_is_sampled_killed_and_goes_on_where_it_was(tmp_path: Path) -> None:
    model, data = write_llama(tmp_path / "llama"), write_data(tmp_path / "data")
    words = ("evaluate", "--model", str(model), "--on", "cruxeval-o,gsm8k", "--data", str(data), "--examples", "2",
             "--samples", "3", "--k", "1,2", "--max-new-tokens", "8", "--batch-size", "1", "--json")  # fmt: skip
    whole = command(*words, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    killed = command(*words, "--out", "torn", cwd=tmp_path, LONGHAUL_CRASHPOINT="evaluate.answers_written:2")
    assert killed.returncode == ExitCode.INTERNAL and "killed by signal 9" in killed.stderr
    before = completions(tmp_path / "torn")
    assert len(before) == 2
    resumed = command(*words, "--out", "torn", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    after = completions(tmp_path / "torn")
    assert before.items() <= after.items() and after == completions(tmp_path / "whole")
    assert all(len(texts) == 3 for texts in after.values())
    facts = json.loads(resumed.stdout)["suites"]
    assert facts == json.loads(whole.stdout)["suites"] and [one["n"] for one in facts] == [2, 2]
