"""Adapters inside a model: what they are made of, that engines and updates see them, and that memory tricks do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Model, Profile
from tests.rounding import bound
from workers.models import adapters, packing, quantized, recompute
from workers.models.log_probs import score
from workers.models.policy import open_policy
from workers.rollout.engine import Request, Sampling
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TINY = Model(random_init="qwen2-tiny")
LORA = Adapter(rank=4, alpha=8.0)


def model_with(model: Model = TINY, adapter: Adapter = LORA, *, seed: int = 0) -> Any:
    """A model whose adapter says something: B is not zero."""
    found = open_policy(Profile(name="x", model=model, adapter=adapter), None, CPU).model
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapters.adapter_of(found).items():
            if ".lora_B." in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return found


def pack_of(model: Any, count: int = 6) -> packing.Pack:
    generator = torch.Generator().manual_seed(5)
    draw = lambda length: tuple(torch.randint(272, (length,), generator=generator).tolist())  # noqa: E731
    prompts = [draw(7), draw(4)] * (count // 2)
    units = packing.units_of(prompts, [draw(3 + i) for i in range(count)], row_tokens=64)
    return packing.pack(packing.rows_of(units, 64))


def gradients(model: Any, max_logits: int = 1 << 25) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    scored = score(model, pack_of(model), 0.7, entropy_needs_grad=True, max_logits=max_logits)
    (scored.log_probs.sum() + 0.3 * scored.entropy.sum()).backward()
    return scored.log_probs.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_only_the_adapter_is_trained_and_it_is_in_float32(dtype: Any, quantization: Any) -> None:
    model = model_with(replace(TINY, dtype=dtype, quantization=quantization))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 7 * 2 and all(".lora_" in name for name in trained)
    assert {parameter.dtype for parameter in adapters.adapter_of(model).values()} == {torch.float32}
    assert model.dtype == getattr(torch, dtype)
    assert not any(module.training for module in model.modules())


def test_a_new_adapter_changes_nothing_and_belongs_to_the_seed() -> None:
    profile = Profile(name="x", model=TINY, adapter=LORA)
    torch.manual_seed(1)
    first, second = (adapters.adapter_of(open_policy(profile, None, CPU).model) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(bool(one.any()) for name, one in first.items() if ".lora_B." in name)
    assert all(bool(one.any()) for name, one in first.items() if ".lora_A." in name)


def test_making_an_adapter_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    open_policy(Profile(name="x", model=TINY, adapter=LORA), None, CPU)
    assert torch.equal(torch.rand(2), expected)


def test_a_target_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(LonghaulError) as caught:
        model_with(adapter=replace(LORA, targets=("q_proj", "qkv_proj")))
    assert caught.value.exit_code == ExitCode.INPUT
    assert "names qkv_proj, which" in caught.value.what
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in caught.value.what


def test_row_26_what_is_stored_about_an_adapter_is_what_peft_would_store(tmp_path: Any) -> None:
    from peft import LoraConfig

    (tmp_path / adapters.CONFIG).write_bytes(adapters.config_json(LORA, "models/base"))
    config = LoraConfig.from_pretrained(tmp_path)
    assert (config.r, config.lora_alpha, config.lora_dropout, config.bias) == (4, 8.0, 0.0, "none")
    assert config.target_modules == set(LORA.targets) and config.base_model_name_or_path == "models/base"


@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("engine", [NativeEngine, HfEngine])
def test_rollouts_have_the_log_probs_that_the_update_computes(engine: Any, quantization: Any) -> None:
    model = model_with(replace(TINY, quantization=quantization, gradient_checkpointing=True))
    requests = [Request((5, 6, 7, 8), 1), Request((9,), 2), Request((5, 6, 7, 8), 3)]
    rollouts = engine(model).generate(requests, Sampling(max_new_tokens=12))
    units = packing.units_of([r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], 64)
    pack = packing.pack(packing.rows_of(units, 64))
    found = score(model, pack, 1.0).log_probs
    for number, rollout in enumerate(rollouts):
        expected = torch.tensor(rollout.log_probs)
        torch.testing.assert_close(found[pack.owners == number].detach(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("adapter", [LORA, Adapter()], ids=["adapter", "all weights"])
def test_recomputation_and_portions_change_neither_numbers_nor_gradients(adapter: Adapter) -> None:
    model = model_with(adapter=adapter)
    log_probs, expected = gradients(model)
    recompute.enable(model)
    for max_logits in (1 << 25, 272 * 5):
        found, recomputed = gradients(model, max_logits)
        # Portions of other sizes add up the head's products, and the exponentials of its logits, in another order.
        apart = bound(sum(model.get_output_embeddings().weight.shape), float(log_probs.abs().max()))
        torch.testing.assert_close(found, log_probs, atol=apart, rtol=0)
        assert recomputed.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(recomputed[name], gradient, atol=1e-5, rtol=1e-4)


def numbers_kept(model: Any) -> int:
    """What a forward pass keeps for the backward pass."""
    sizes: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score(model, pack_of(model), 1.0)
    return sum(sizes)


def test_recomputation_keeps_the_layers_inputs_alone() -> None:
    model = model_with()
    before = numbers_kept(model)
    recompute.enable(model)
    assert numbers_kept(model) < before / 3


def test_the_four_bit_base_is_what_bitsandbytes_makes_of_it_and_keeps_gradients() -> None:
    from bitsandbytes.nn import Linear4bit

    model = model_with(replace(TINY, quantization="nf4"))
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert len(layers) == 14 and all(layer.weight.dtype == torch.uint8 for layer in layers)
    assert model.lm_head.weight.dtype == model.model.embed_tokens.weight.dtype == torch.float32
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    log_probs, found = gradients(model)
    assert len(found) == 28 and all(bool(gradient.any()) for gradient in found.values())
    assert not torch.allclose(log_probs, gradients(model_with())[0], atol=1e-4)


def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(LonghaulError) as caught:
        quantized.require("no_such_library", 'model.quantization = "nf4"')
    assert "needs no_such_library" in caught.value.what and caught.value.exit_code == ExitCode.INPUT
    assert caught.value.next_command == "pip install -c constraints.txt no_such_library"
