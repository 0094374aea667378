"""A checkpoint that also reads images: its language model is trained, saved and exported as a model of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from profiles.architecture import path_of
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Model, Profile, Sampling
from profiles.text_part import text_part
from tests.workers.walk import tiny, write_tokenizer
from workers.export.job import export
from workers.line_contract import ExportSpec
from workers.models import adapters
from workers.models.policy import open_policy

CPU = torch.device("cpu")
IDS = torch.tensor([[(7919 * place + 13) % 256 for place in range(24)]])
KINDS = ["gemma3", "qwen3_5", "mistral3"]


def write_whole(kind: str, directory: Path) -> Any:
    """A checkpoint with all parts, as transformers writes it. Returns its logits for IDS, a text without images."""
    from transformers import AutoModelForImageTextToText

    make: Any = AutoModelForImageTextToText.from_config
    torch.manual_seed(0)
    model = make(tiny(kind), dtype=torch.float32).eval()
    model.save_pretrained(directory)
    write_tokenizer(directory)
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def profile_of(directory: Path, **changes: Any) -> Profile:
    sections: dict[str, Any] = {
        "model": Model(path=str(directory), dtype="float32"),
        "sampling": Sampling(engine="native", max_prompt_tokens=40, max_completion_tokens=24),
    }
    return Profile(name="test", **(sections | changes))


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_language_model_computes_what_the_whole_model_computes_of_text(kind: str, tmp_path: Path) -> None:
    whole = write_whole(kind, tmp_path)
    model = open_policy(profile_of(tmp_path), None, CPU).model
    assert (logits_of(model) - whole).abs().max() < 1e-5
    assert not any("vision" in name or "visual" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_it_is_a_plain_causal_model_and_resumes(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_whole(kind, tmp_path / "base")
    profile = profile_of(tmp_path / "base")
    policy, head = open_policy(profile, None, CPU), tmp_path / "head"
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)
    head.mkdir()
    policy.static.write(head)
    for item in policy.items:
        item.save(head / item.filename)
    again = open_policy(profile, head, CPU)
    for item in again.items:
        item.load(head / item.filename)
    assert torch.equal(logits_of(again.model), logits_of(policy.model))
    read: Any = AutoModelForCausalLM.from_pretrained
    plain, found = read(head, dtype=torch.float32, output_loading_info=True)
    assert not any(found.values())
    assert (logits_of(plain.eval()) - logits_of(policy.model)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS[:2])
def test_an_adapter_of_it_is_exported_merged_as_a_plain_causal_model(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_whole(kind, tmp_path / "base")
    adapter = Adapter(rank=4, targets=("down_proj",))
    profile = profile_of(tmp_path / "base", adapter=adapter)
    policy, head, out = open_policy(profile, None, CPU), tmp_path / "head", tmp_path / "out"
    with torch.no_grad():
        for parameter in adapters.adapter_of(policy.model).values():
            parameter.add_(0.05)
    head.mkdir(), out.mkdir()
    policy.static.write(head)
    for item in policy.items:
        item.save(head / item.filename)
    profile = replace(profile, run=replace(profile.run, device="cpu"))
    spec = ExportSpec(
        profile=profile, directory=str(head), out=str(out), kind="merged", step=1, dtype="float32",
        shard_bytes=1 << 30, source={},
    )  # fmt: skip
    export(spec, lambda _: None)
    read: Any = AutoModelForCausalLM.from_pretrained
    plain, found = read(out, dtype=torch.float32, output_loading_info=True)
    assert not any(found.values())
    assert (logits_of(plain.eval()) - logits_of(policy.model)).abs().max() < 1e-4


def test_in_4_bits_it_is_kept_and_read_again(tmp_path: Path) -> None:
    write_whole("gemma3", tmp_path)
    knobs = Model(path=str(tmp_path), dtype="bfloat16", quantization="nf4")
    profile = profile_of(tmp_path, model=knobs, adapter=Adapter(rank=4, targets=("down_proj",)))
    first, second = (open_policy(profile, None, CPU).model for _ in range(2))
    assert torch.equal(logits_of(first), logits_of(second))


def test_a_weight_of_the_language_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_whole("gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["language_model.model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(LonghaulError, match=r"missing_keys model.layers.0.mlp.up_proj.weight") as caught:
        open_policy(profile_of(tmp_path), None, CPU)
    assert caught.value.exit_code is ExitCode.INPUT


def test_a_language_part_that_is_no_causal_model_of_its_own_is_refused(tmp_path: Path) -> None:
    write_whole("mllama", tmp_path)
    with pytest.raises(LonghaulError, match="no causal model for its language part alone") as caught:
        open_policy(profile_of(tmp_path), None, CPU)
    assert caught.value.exit_code is ExitCode.INPUT


def test_the_plan_reads_the_config_of_the_language_model() -> None:
    text = {"model_type": "gemma3_text", "sliding_window": 512}
    found = text_part({"model_type": "gemma3", "tie_word_embeddings": True, "text_config": text})
    assert found == text | {"tie_word_embeddings": True}
    assert path_of(found, "native").startswith("own code (gemma3_text)")


def test_a_mention_of_text_config_alone_changes_nothing() -> None:
    assert text_part(json.loads('{"model_type": "llama", "text_config": null}'))["model_type"] == "llama"
