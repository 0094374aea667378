"""A family from outside, in this one file: sampled by the native engine, trained on packed rows, planned.

It is a Llama under another name, whose config.json calls things otherwise, with biases where Qwen2 has them or nowhere.
The judge is transformers' own pass over each single sequence. Bounds: as in `test_families.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from orchestrator.judging import judge, shape_for
from orchestrator.machine import Machine
from profiles import capture
from profiles.description import QKV, Architecture
from profiles.families import FAMILIES, architecture_of
from profiles.family import Family, Fields, usual
from profiles.schema import Adapter, Model, Profile, Sampling
from workers.models import plain
from workers.models.adapters import adapter_of
from workers.models.policy import open_policy
from workers.models.random_init import byte_tokenizer
from workers.rollout.engine import Request
from workers.rollout.engine import Sampling as Asked
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.native import NativeEngine
from workers.rollout.probe import probe, single_log_probs, trained_log_probs
from workers.rollout.select import engine_of

# --- what a newcomer writes: a file of profiles/families/ ------------------------------------------------------------


def describe(fields: Fields) -> Architecture:
    return replace(usual(fields), biases=QKV if fields.get("has_biases", False) else frozenset[str]())


FAMILY = Family(
    "toy", "ToyForCausalLM", describe, is_compared=True,
    names={
        "hidden_size": "width", "intermediate_size": "mlp_width", "num_hidden_layers": "depth",
        "num_attention_heads": "heads", "num_key_value_heads": "key_heads", "hidden_act": "gate",
    },
)  # fmt: skip

# --- what is in transformers already, or in a package that registers it there ----------------------------------------


class ToyConfig(LlamaConfig):
    model_type = "toy"
    attribute_map: ClassVar[dict[str, str]] = dict(FAMILY.names)


class ToyForCausalLM(LlamaForCausalLM):
    config_class = ToyConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers if config.has_biases else ():
            for name in sorted(QKV):
                old = getattr(layer.self_attn, name)
                setattr(layer.self_attn, name, nn.Linear(old.in_features, old.out_features))


AutoConfig.register("toy", ToyConfig)
AutoModelForCausalLM.register(ToyConfig, ToyForCausalLM)

# ---------------------------------------------------------------------------------------------------------------------

BOUND = 5e-5
REQUESTS = [Request(tuple((7919 * place + 13) % 256 for place in range(length)), seed)
            for seed, length in enumerate((24, 24, 11, 2), 1)]  # fmt: skip


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(FAMILIES, "toy", FAMILY)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model_of(has_biases: bool) -> Any:
    """In float32, in evaluation mode; norms away from 1 and biases away from 0."""
    make: Any = ToyConfig
    config = make(
        vocab_size=272, width=32, mlp_width=48, depth=3, heads=4, key_heads=2, head_dim=16, gate="silu",
        has_biases=has_biases, max_position_embeddings=4096, initializer_range=0.2, bos_token_id=None, eos_token_id=256,
        pad_token_id=256,
    )  # fmt: skip
    torch.manual_seed(0)
    model = ToyForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def written(directory: Path, has_biases: bool) -> Path:
    model_of(has_biases).save_pretrained(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def profile_of(directory: Path, **changes: Any) -> Profile:
    sections: dict[str, Any] = {
        "model": Model(path=str(directory), dtype="float32"),
        "sampling": Sampling(engine="native", max_prompt_tokens=40, max_completion_tokens=24),
    }
    return Profile(name="test", **(sections | changes))


@pytest.mark.parametrize("has_biases", [False, True])
def test_rollouts_and_packed_rows_have_the_log_probs_of_plain_transformers(has_biases: bool, tmp_path: Path) -> None:
    profile = profile_of(written(tmp_path, has_biases))
    policy = open_policy(profile, None, torch.device("cpu"))
    engine = engine_of(policy.model, profile, policy.tokenizer)
    assert isinstance(engine.engine, NativeEngine)
    row_tokens = plain.row_tokens_for(policy.model, 512)
    assert row_tokens == 512
    assert probe(policy.model, engine, profile, row_tokens=row_tokens)["text"].startswith("own code (toy)")
    rollouts = engine.generate(REQUESTS, Asked(max_new_tokens=12, ignore_stop=True))
    trained = trained_log_probs(policy.model, rollouts, profile, row_tokens)
    other = model_of(has_biases)  # nothing of ours has touched it
    for rollout, by_trainer in zip(rollouts, trained, strict=True):
        truth = single_log_probs(other, rollout, 1.0)
        assert (torch.tensor(rollout.log_probs) - truth).abs().max() < BOUND
        assert (by_trainer - truth).abs().max() < BOUND


def test_captured_steps_and_written_out_layers_take_a_family_with_the_parts_that_they_know(tmp_path: Path) -> None:
    model = Model(path=str(written(tmp_path, True)), dtype="float32", gradient_checkpointing=True)
    profile = profile_of(tmp_path, model=model, adapter=Adapter(rank=4, targets=("q_proj", "down_proj")))
    policy = open_policy(profile, None, torch.device("cpu"))
    assert policy.model.fast_runner is not None
    with torch.no_grad():  # an adapter that adds nothing would prove nothing
        for parameter in adapter_of(policy.model).values():
            parameter.add_(0.05)
    rollouts = GraphEngine(policy.model).generate(REQUESTS, Asked(max_new_tokens=12, ignore_stop=True))
    trained = trained_log_probs(policy.model, rollouts, profile, 512)
    for rollout, by_trainer in zip(rollouts, trained, strict=True):
        truth = single_log_probs(policy.model, rollout, 1.0)
        assert (torch.tensor(rollout.log_probs) - truth).abs().max() < BOUND
        assert (by_trainer - truth).abs().max() < BOUND


def test_the_planner_knows_its_sizes_and_its_path(tmp_path: Path) -> None:
    profile = profile_of(written(tmp_path, True))
    shape = shape_for(profile.model)
    assert shape is not None and shape.is_captured
    assert (shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers) == (32, 48, 3)
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (4, 2, 16)
    verdict = judge(profile, Machine(()))
    assert verdict.path == "own code (toy): rollouts by native, training on packed rows"
    assert verdict.profile == profile


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gate": "gelu"}, "toy with gate = gelu"),
        ({"logit_bump": 0.5}, "toy with logit_bump = 0.5"),
        ({"attention_bias": True}, "toy with attention_bias = True"),
    ],
)
def test_what_its_record_or_our_code_does_not_know_goes_to_plain_transformers(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = json.loads((written(tmp_path, False) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    verdict = judge(profile_of(tmp_path), Machine(()))
    assert verdict.is_plain and reason in verdict.path and verdict.profile.sampling.engine == "hf"


def test_a_family_that_was_not_compared_stays_with_plain_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "toy", replace(FAMILY, is_compared=False))
    config = json.loads((written(tmp_path, True) / "config.json").read_text())
    assert "the architecture toy is not one of" in judge(profile_of(tmp_path), Machine(())).path
    assert capture.supports(architecture_of(config))
