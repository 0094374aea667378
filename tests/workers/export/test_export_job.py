"""What is exported: an adapter that peft computes alike, and merged weights that transformers computes alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.torch import load_file

from profiles.errors import LonghaulError
from profiles.schema import Adapter, Model, Profile, Run
from workers.export.job import export
from workers.export.merged import plan_shards
from workers.line_contract import ExportSpec, Said, Wrote
from workers.models import adapters, load
from workers.models.policy import Policy, open_policy

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 9, 20, 31, 7, 7, 100, 3]])


def profile_of(rank: int = 4, **model: Any) -> Profile:
    adapter = Adapter(rank=rank, alpha=8.0, implementation="own")
    return Profile(
        name="x", run=Run(threads=1, device="cpu"), model=Model(random_init="qwen2-tiny", **model), adapter=adapter
    )


def checkpoint_of(profile: Profile, directory: Path) -> Policy:
    """A checkpoint's model files, of a policy that says something else than its base; the policy itself."""
    directory.mkdir()
    policy = open_policy(profile, None, CPU)
    generator = torch.Generator().manual_seed(1)
    changed = adapters.adapter_of(policy.model) or dict(policy.model.named_parameters())
    with torch.no_grad():
        for parameter in changed.values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    for item in policy.items:
        item.save(directory / item.filename)
    policy.static.write(directory)
    return policy


def exported(profile: Profile, checkpoint: Path, out: Path, **changes: Any) -> list[Said]:
    out.mkdir()
    said: list[Said] = []
    spec = ExportSpec(
        kind="merged", directory=str(checkpoint), step=3, out=str(out), profile=profile, dtype="auto",
        source={"run": "x", "step": 3},
    )  # fmt: skip
    export(replace(spec, **changes), said.append)
    return said


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(IDS).logits
    return found


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_row_28_a_merged_model_says_what_base_and_adapter_say(quantization: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    profile = profile_of(quantization=quantization)
    policy = checkpoint_of(profile, tmp_path / "checkpoint")
    said = exported(profile, tmp_path / "checkpoint", tmp_path / "out", shard_bytes=100_000)
    found, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert found.dtype == torch.float32 and not hasattr(found.config, "quantization_config")
    torch.testing.assert_close(logits(found), logits(policy.model), atol=1e-5, rtol=0)
    with adapters.disabled(policy.model):
        assert not torch.allclose(logits(found), logits(policy.model), atol=1e-2)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert [message.name for message in said if isinstance(message, Wrote)][: len(files)] == files
    assert json.loads((tmp_path / "out/export.json").read_text()) == {
        "kind": "merged", "dtype": "float32", "run": "x", "step": 3
    }  # fmt: skip


def test_weights_are_added_in_float32_and_rounded_once(tmp_path: Path) -> None:
    profile = profile_of(dtype="bfloat16")
    policy = checkpoint_of(profile, tmp_path / "checkpoint")
    exported(profile, tmp_path / "checkpoint", tmp_path / "out")
    layer = policy.model.model.layers[1].mlp.up_proj
    a, b = layer.matrices
    exact = layer.base_layer.weight.float() + (b @ a) * 2.0
    found = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(found["model.layers.1.mlp.up_proj.weight"], exact.detach().bfloat16())
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in found  # it is the embedding
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"


def test_an_adapter_is_what_peft_reads(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    profile = profile_of()
    policy = checkpoint_of(profile, tmp_path / "checkpoint")
    exported(profile, tmp_path / "checkpoint", tmp_path / "out", kind="adapter")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "adapter_config.json", "adapter_model.safetensors", "export.json", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    with load.opened_model(profile.model, 0) as base:
        theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "out")
    torch.testing.assert_close(logits(theirs), logits(policy.model), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.bfloat16), ("float16", torch.float16)])
def test_what_llama_cpp_converts_has_16_bits_and_all_that_its_script_reads(
    dtype: Any, expected: torch.dtype, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    profile = profile_of()
    checkpoint_of(profile, tmp_path / "checkpoint")
    out = tmp_path / "out"
    exported(profile, tmp_path / "checkpoint", out, kind="gguf-ready", dtype=dtype)
    config, tokenizer = AutoConfig.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert config.architectures == ["Qwen2ForCausalLM"] and config.model_type == "qwen2" and config.dtype == expected
    assert max(tokenizer.get_vocab().values()) < config.vocab_size
    assert GenerationConfig.from_pretrained(out).eos_token_id == config.eos_token_id
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {expected}


def test_a_run_without_an_adapter_is_exported_as_it_is(tmp_path: Path) -> None:
    profile = profile_of(rank=0)
    policy = checkpoint_of(profile, tmp_path / "checkpoint")
    exported(profile, tmp_path / "checkpoint", tmp_path / "out")
    found = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(found[name], one) for name, one in policy.model.named_parameters())


@pytest.mark.parametrize(
    ("rank", "changes", "told"),
    [
        pytest.param(0, {"kind": "adapter"}, "has no adapter", id="no adapter"),
        pytest.param(4, {"kind": "gguf-ready", "dtype": "float32"}, "writes 16 bits", id="32 bits for llama.cpp"),
    ],
)
def test_what_cannot_be_exported_is_refused(rank: int, changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    profile = profile_of(rank)
    checkpoint_of(profile, tmp_path / "checkpoint")
    with pytest.raises(LonghaulError, match=told):
        exported(profile, tmp_path / "checkpoint", tmp_path / "out", **changes)


def test_a_weight_that_16_bits_cannot_hold_is_refused(tmp_path: Path) -> None:
    profile = profile_of(rank=0)
    policy = checkpoint_of(profile, tmp_path / "checkpoint")
    with torch.no_grad():
        policy.model.model.norm.weight[0] = 1e6
    policy.items[0].save(tmp_path / "checkpoint" / policy.items[0].filename)
    with pytest.raises(LonghaulError, match=r"model\.norm\.weight are not finite"):
        exported(profile, tmp_path / "checkpoint", tmp_path / "out", dtype="float16")


@given(st.lists(st.integers(1, 50)), st.integers(1, 60))
def test_files_hold_everything_in_order_and_are_no_larger_than_asked(sizes: list[int], limit: int) -> None:
    weights = [(str(number), size) for number, size in enumerate(sizes)]
    shards = plan_shards(weights, limit)
    assert [name for names in shards for name in names] == [name for name, _ in weights]
    for names in shards:
        assert len(names) == 1 or sum(dict(weights)[name] for name in names) <= limit
