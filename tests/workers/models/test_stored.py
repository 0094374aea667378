"""Checkpoints in few bits: NF4 is read as it is, FP8 and MXFP4 become floating point, others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Model, Profile
from tests.workers.families import write
from workers.models import load, nf4
from workers.models.policy import Policy, open_policy
from workers.models.stored import reading_of

CPU = torch.device("cpu")
IDS = torch.tensor([[(7919 * place + 13) % 256 for place in range(20)]])
ADAPTER = Adapter(rank=4, targets=("q_proj",), implementation="own")


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def quantised_by(directory: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def in_fp8(directory: Path, block: int = 16) -> dict[str, Tensor]:
    """Store the linear layers in 8 bits with a scale for each block. Returns the weights that they stand for."""
    stored, meant = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        meant[name] = stored[name] = weight
        if "_proj" in name:
            out, size = weight.shape
            tiles = weight.view(out // block, block, size // block, block)
            scales = tiles.abs().amax(dim=(1, 3)) / 448.0
            codes = (tiles / scales[:, None, :, None]).to(torch.float8_e4m3fn)
            stored[name] = codes.view(out, size)
            stored[f"{name}_scale_inv"] = scales
            meant[name] = (codes.float() * scales[:, None, :, None]).view(out, size)
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [block, block]}
    quantised_by(directory, settings, stored)
    return meant


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def in_mxfp4(directory: Path) -> dict[str, Tensor]:
    """Replace the experts by random codes of 4 bits, the first of a byte in its low half, and a power of two for each
    32. Returns the weights that they stand for."""
    generator = torch.Generator().manual_seed(0)
    stored, meant = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        meant[name] = stored[name] = weight
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, size, out = weight.shape
            codes = torch.randint(0, 256, (experts, out, size // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(120, 124, (experts, out, size // 32), generator=generator, dtype=torch.uint8)
            del stored[name]
            stored |= {f"{name}_blocks": codes, f"{name}_scales": scales}
            values = torch.stack((FP4[(codes & 15).long()], FP4[(codes >> 4).long()]), -1).flatten(-2)
            values = values * torch.exp2(scales.float() - 127)[..., None]
            meant[name] = values.reshape(experts, out, size).transpose(1, 2).contiguous()
    quantised_by(directory, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}, stored)
    return meant


def opened(directory: Path, adapter: Adapter = ADAPTER, **knobs: Any) -> Policy:
    return open_policy(Profile(name="x", model=Model(path=str(directory), **knobs), adapter=adapter), None, CPU)


def test_eight_bits_become_the_floating_point_weights_that_they_stand_for(tmp_path: Path) -> None:
    write("llama", tmp_path)
    plain = load.load_model(tmp_path, Model(path=str(tmp_path)), CPU)
    plain.load_state_dict(in_fp8(tmp_path), strict=True)
    policy = opened(tmp_path, Adapter())
    assert torch.equal(logits_of(policy.model), logits_of(plain))
    (tmp_path / "head").mkdir()
    policy.static.write(tmp_path / "head")
    assert "quantization_config" not in json.loads((tmp_path / "head/config.json").read_text())


def test_eight_bits_become_four_where_the_profile_wants_four(tmp_path: Path) -> None:
    write("llama", tmp_path)
    meant = in_fp8(tmp_path)
    model = opened(tmp_path, dtype="bfloat16", quantization="nf4").model
    weight = model.model.layers[0].mlp.up_proj.weight
    wanted = nf4.quantize(meant["model.layers.0.mlp.up_proj.weight"].bfloat16())
    assert torch.equal(weight.data.view(-1), wanted.packed)


def test_experts_in_mxfp4_become_the_weights_that_they_stand_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workers import families

    monkeypatch.setitem(families._SIZES, "intermediate_size", 64)
    write("gpt_oss", tmp_path)
    plain = load.load_model(tmp_path, Model(path=str(tmp_path)), CPU)
    meant = in_mxfp4(tmp_path)
    assert sum(name.endswith("experts.down_proj") for name in meant) == 4
    plain.load_state_dict(meant, strict=True)
    found = load.load_model(tmp_path, Model(path=str(tmp_path)), CPU)
    assert (logits_of(found) - logits_of(plain)).abs().max() < 1e-5  # the same weights, in another layout


def test_nf4_of_bitsandbytes_is_read_as_it_is(tmp_path: Path) -> None:
    write("llama", tmp_path / "base")
    knobs = Model(path=str(tmp_path / "base"), dtype="float32", quantization="nf4")
    first = load.load_model(tmp_path / "base", knobs, CPU)
    write("llama", tmp_path / "four")
    first.save_pretrained(tmp_path / "four")
    policy = opened(tmp_path / "four", quantization="nf4")
    assert torch.equal(logits_of(policy.model), logits_of(first))
    layer = policy.model.model.layers[0].self_attn.v_proj
    assert layer.weight.dtype == torch.uint8 and layer.compute_dtype == torch.float32
    with pytest.raises(LonghaulError, match=r'set model.quantization = "nf4"') as caught:
        opened(tmp_path / "four")
    assert caught.value.exit_code is ExitCode.INPUT


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq, which is not read here"),
        ({"quant_method": "awq", "bits": 4}, "awq, which is not read here"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors, which is not read here"),
        ({"load_in_8bit": True}, "bitsandbytes, but not in NF4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "not in NF4"),
        ({"bits": 4}, "unnamed, which is not read here"),
    ],
)
def test_another_way_of_quantising_is_refused_with_what_to_do(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write("llama", tmp_path)
    quantised_by(tmp_path, settings, load_file(tmp_path / "model.safetensors"))
    with pytest.raises(LonghaulError) as caught:
        opened(tmp_path, dtype="bfloat16", quantization="nf4")
    assert said in caught.value.what and "unquantised original" in caught.value.what
    assert caught.value.exit_code is ExitCode.INPUT


def test_a_plain_checkpoint_is_read_plainly() -> None:
    assert reading_of({"model_type": "llama", "quantization_config": None}, "none") == ("plain", "")
