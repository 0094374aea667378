"""Passes of a decoder layer with own adapters, written out: the numbers of its modules, with fewer operations."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.schema import Adapter, Model, Profile
from tests.workers.models.test_adapters import pack_of
from workers.models import adapters, lora, quantized
from workers.models.fast_layers import Joint, fast_layers
from workers.models.log_probs import score
from workers.models.policy import open_policy

pytestmark = pytest.mark.usefixtures("one_thread")

on_gpu = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
OWN = Adapter(rank=4, alpha=8.0, implementation="own", targets=ATTENTION)


def model_of(
    adapter: Adapter, *, recomputed: bool, quantization: str = "none", device: str = "cpu", **knobs: Any
) -> Any:
    """With an adapter that says something."""
    shape = Model(random_init="qwen2-tiny", quantization=quantization, gradient_checkpointing=recomputed, **knobs)
    model = open_policy(Profile(name="x", model=shape, adapter=adapter), None, torch.device(device)).model
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in adapters.adapter_of(model).values():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def is_fast(model: Any) -> bool:
    return getattr(model, "fast_runner", None) is not None


def learned(model: Any) -> dict[str, Tensor]:
    """Log-probabilities of a pack, and the gradients of the adapter's matrices."""
    model.zero_grad(set_to_none=True)
    found = score(model, pack_of(model).to(model.device), 0.7).log_probs
    found.sum().backward()
    gradients = {name: one.grad.clone() for name, one in adapters.adapter_of(model).items()}  # type: ignore[union-attr]
    return gradients | {"log_probs": found.detach()}


@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize(
    "targets",
    [ATTENTION, MLP, ATTENTION + MLP, ("q_proj", "v_proj"), ("down_proj",), ("k_proj", "up_proj")],
    ids=lambda names: " ".join(name.removesuffix("_proj") for name in names),
)
def test_log_probs_and_gradients_are_those_of_the_modules(targets: tuple[str, ...], quantization: str) -> None:
    knobs = replace(OWN, targets=targets)
    plain, fast = (model_of(knobs, recomputed=how, quantization=quantization) for how in (False, True))
    assert is_fast(fast) and not is_fast(plain)
    tolerance = 1e-4
    if quantization == "none":
        plain, fast, tolerance = plain.double(), fast.double(), 1e-6  # the norms are in float32 still
    expected, found = learned(plain), learned(fast)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float((found[name] - value).norm()) <= tolerance * float(value.norm()), name


def test_what_is_scored_is_what_is_learnt_from() -> None:
    model = model_of(OWN, recomputed=True)
    with torch.no_grad():
        scored = score(model, pack_of(model), 0.7).log_probs
    assert torch.equal(scored, learned(model)["log_probs"])


def test_without_its_adapter_it_is_the_base() -> None:
    model, pack = model_of(OWN, recomputed=True), None
    base = model_of(Adapter(), recomputed=False)
    pack = pack_of(model)
    with torch.no_grad(), adapters.disabled(model):
        found = score(model, pack, 1.0).log_probs
    with torch.no_grad():
        expected = score(base, pack, 1.0).log_probs
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_rollout_with_a_cache_draws_the_same_tokens() -> None:
    plain, fast = (model_of(OWN, recomputed=how) for how in (False, True))
    ids = torch.arange(5, 17)[None]
    drawn = [model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=True) for model in (plain, fast)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(replace(OWN, implementation="peft"), id="peft's"),
        pytest.param(Adapter(), id="none: all is trained"),
    ],
)
def test_layers_with_anything_else_that_is_trained_stay_as_they_are(adapter: Adapter) -> None:
    assert not is_fast(model_of(adapter, recomputed=True))


def test_a_layer_with_a_trained_norm_stays_as_it_is() -> None:
    model = model_of(OWN, recomputed=False)
    for layer in model.model.layers:
        layer.input_layernorm.weight.requires_grad_(True)
    assert fast_layers(model) is None


class Count(TorchDispatchMode):
    """Of operations that make something: views cost no launch."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made += not func.is_view and func._schema.name not in ("aten::detach", "aten::empty.memory_format")
        return func(*args, **(kwargs or {}))


def test_it_needs_fewer_operations_than_the_modules() -> None:
    found = {}
    for is_written_out in (False, True):
        model = model_of(OWN, recomputed=True)
        if not is_written_out:
            model.fast_runner = None
        learned(model)
        with Count() as count:
            learned(model)
        found[is_written_out] = count.made
    assert found[True] < found[False]


def test_products_of_one_input_are_those_of_each_module() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(6, 5).requires_grad_(False)
    adapted = lora.LoraLinear(nn.Linear(6, 3, bias=False).requires_grad_(False), 2, 0.5, 0)
    nn.init.normal_(adapted.matrices[1])
    x = torch.randn(2, 4, 6, requires_grad=True)
    weights = torch.randn(2, 4, 5), torch.randn(2, 4, 3)

    def gradients(outs: Any) -> tuple[Tensor, ...]:
        total = sum((out * weight).sum() for out, weight in zip(outs, weights, strict=True))
        return torch.autograd.grad(total, (x, *adapted.matrices))

    outs = Joint(plain, adapted)(x, iter(adapted.matrices))
    expected = plain(x), adapted(x)
    torch.testing.assert_close(tuple(outs), expected)
    torch.testing.assert_close(gradients(outs), gradients(expected))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_row_30_a_weight_in_4_bits_is_what_bitsandbytes_makes_of_it(device: str) -> None:
    from bitsandbytes.functional import dequantize_4bit

    model = model_of(OWN, recomputed=True, quantization="nf4", device=device, dtype="bfloat16")
    for module in (model.model.layers[0].self_attn.q_proj.base_layer, model.model.layers[1].mlp.down_proj):
        expected = dequantize_4bit(module.weight.data.view(-1, 1), module.weight.quant_state)
        assert torch.equal(quantized.weight_of(module, torch.bfloat16), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_on_a_gpu_in_16_bits_it_is_as_near_to_float32_as_the_modules(quantization: str) -> None:
    knobs = replace(OWN, targets=ATTENTION + MLP)
    how: dict[str, Any] = {"quantization": quantization, "device": "cuda"}
    plain = learned(model_of(knobs, recomputed=False, dtype="bfloat16", **how))
    found = learned(model_of(knobs, recomputed=True, dtype="bfloat16", **how))
    exact = learned(model_of(knobs, recomputed=False, dtype="float32", **how))
    for name, value in exact.items():
        off, plain_off = (float((one[name] - value).norm() / value.norm()) for one in (found, plain))
        assert off <= 1.3 * plain_off + 1e-3, (name, off, plain_off)
