"""Checkpoints as models of transformers and peft: the weights that the run trained, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import PreTrainedModel

import longhaul
from profiles.load import from_json
from workers.models.policy import profile_for_reading, restored_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ONE_STEP = {"run.max_cycles": 1, "run.steps_per_cycle": 1, "run.checkpoint_every": 1, "validation.examples_per_task": 2}


def trained(folder: Path, profile: str, **more: object) -> longhaul.Run:
    settings = ONE_STEP | {name.replace("__", "."): value for name, value in more.items()}
    run = longhaul.start(profile, name="night", folder=folder, settings=settings)
    assert run.wait(300).state == "finished"
    return run


def test_a_run_that_trains_all_weights_gives_a_model_of_transformers(tmp_path: Path) -> None:
    run = trained(tmp_path, "pocket-grpo-debug")
    found = run.load_model()
    assert isinstance(found.model, PreTrainedModel) and not found.model.training
    assert (found.checkpoint.step, found.checkpoint.is_head) == (1, True)
    stored = load_file(found.checkpoint.path / "model.safetensors")
    mine = found.model.state_dict()
    assert stored and all(torch.equal(mine[name], tensor) for name, tensor in stored.items())
    assert found.tokenizer.decode(found.tokenizer("7 + 5")["input_ids"])
    before = run.load_model(0).model.state_dict()
    assert any(not torch.equal(before[name], mine[name]) for name in stored)
    with pytest.raises(longhaul.LonghaulError, match="no checkpoint of step 9") as told:
        run.load_model(9)
    assert told.value.exit_code == longhaul.ExitCode.INPUT
    flipped = bytearray((found.checkpoint.path / "model.safetensors").read_bytes())
    flipped[-1] ^= 1
    (found.checkpoint.path / "model.safetensors").write_bytes(flipped)
    with pytest.raises(longhaul.LonghaulError, match="sha256 differs"):
        run.load_model()


def test_a_run_that_trains_an_adapter_gives_its_base_with_the_adapter(tmp_path: Path) -> None:
    steep = {"optimizer__learning_rate": 0.05, "optimizer__warmup_steps": 0}
    run = trained(tmp_path, "grpo-1.5b-8gb-debug", model__quantization="none", model__dtype="float32", **steep)
    found = run.load_model()
    assert isinstance(found.model, PeftModel)
    profile = profile_for_reading(from_json(json.dumps(run.profile())), None)
    policy = restored_policy(profile, found.checkpoint.path, 1, torch.device("cpu")).model
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        mine, theirs = found.model(input_ids=ids).logits, policy(input_ids=ids).logits
        with found.model.disable_adapter():
            base = found.model(input_ids=ids).logits
    stored = load_file(found.checkpoint.path / "adapter_model.safetensors")
    assert len(stored) == sum(".lora_" in name for name, _ in found.model.named_parameters())
    changed = (mine - base).abs().max()
    assert changed > 0 and (mine - theirs).abs().max() <= changed / 1000, "the adapter is added once, with its scale"
