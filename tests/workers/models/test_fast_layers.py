"""Passes of a decoder layer with own adapters, written out: the numbers of its modules, with fewer operations."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiles.schema import Adapter, Model, Profile
from tests.workers.families import model_of as family_of
from tests.workers.families import write
from tests.workers.interpreter import interpreted
from tests.workers.models.layer_kernel_cases import all_of
from tests.workers.models.test_adapters import pack_of
from tests.workers.models.test_families import OWN as FAMILIES
from tests.workers.models.test_families import REQUESTS, UNSAMPLED, profile_of
from tests.workers.rollout.test_graph_kernels import OTHERS, other_model
from workers.models import adapters, fast_graphs, lora, packing, quantized
from workers.models.adapters import linear_names
from workers.models.fast_layers import Joint, fast_layers
from workers.models.log_probs import score
from workers.models.optimizer import trainable
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
    tolerance = 5e-4  # the modules are 1.2e-4 off float64 on processors without AVX-512, the written-out layers 1e-5
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


def test_layers_with_anothers_adapter_stay_as_they_are() -> None:
    assert not is_fast(model_of(replace(OWN, implementation="peft"), recomputed=True))


def test_a_layer_of_which_a_part_is_trained_stays_as_it_is() -> None:
    with_norm, beside_weights, without_bias = (model_of(one, recomputed=False) for one in (OWN, OWN, Adapter()))
    for layer in with_norm.model.layers:
        layer.input_layernorm.weight.requires_grad_(True)
    beside_weights.requires_grad_(True)
    without_bias.model.layers[1].self_attn.q_proj.bias.requires_grad_(False)
    assert [fast_layers(one) for one in (with_norm, beside_weights, without_bias)] == [None] * 3
    assert fast_layers(model_of(Adapter(), recomputed=False)) is not None


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

    outs = Joint(plain, adapted)(x, {})
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


# --- every family ---------------------------------------------------------------------------------------------------


def packed(vocabulary: int) -> packing.Pack:
    """Two completions of one prompt that is longer than a window, and two of others, in rows of 512 tokens."""
    draws = torch.Generator().manual_seed(0)
    completions = [tuple(torch.randint(2, vocabulary, (20,), generator=draws).tolist()) for _ in REQUESTS]
    units = packing.units_of([one.prompt_ids for one in REQUESTS], completions, 512)
    (batch,) = packing.micro_batches(units, len(REQUESTS), 512)
    return packing.pack(batch)


def passed(model: Any, *, is_written_out: bool) -> list[Tensor]:
    """Log-probs of all tokens, and the gradients of all that is trained."""
    runner = model.fast_runner
    model.fast_runner = runner if is_written_out else None
    model.zero_grad()
    found = score(model, packed(250).to(model.device), 1.0).log_probs
    (found * torch.linspace(-1, 1, len(found), device=found.device)).sum().backward()
    model.fast_runner = runner
    return [found.detach(), *(one.grad.clone() for one in trainable(model).values())]  # type: ignore[union-attr]


def apart(found: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    """How far log-probs and the whole gradient are from the exact ones."""
    one, other = (torch.cat([each.double().flatten() for each in some[1:]]) for some in (found, exact))
    return float((found[0].double() - exact[0].double()).abs().max()), float((one - other).norm() / other.norm())


@pytest.mark.parametrize("rank", [0, 4], ids=["all weights", "an adapter"])
@pytest.mark.parametrize("name", sorted(FAMILIES - UNSAMPLED))
def test_every_family_has_the_log_probs_and_gradients_of_its_modules(name: str, rank: int, tmp_path: Path) -> None:
    write(name, tmp_path)
    knobs = Model(path=str(tmp_path), dtype="float32", gradient_checkpointing=True)
    adapter = Adapter(rank=rank, targets=tuple(linear_names(family_of(name))), implementation="own")
    model = open_policy(profile_of(tmp_path, model=knobs, adapter=adapter), None, torch.device("cpu")).model.double()
    assert is_fast(model)
    with torch.no_grad():
        for matrix in adapters.adapter_of(model).values():
            matrix.add_(0.05)
    log_probs, gradient = apart(passed(model, is_written_out=True), passed(model, is_written_out=False))
    # Log-probs are rounded to float32, and modules of some families rotate in it: gradients are then 5e-5 apart.
    assert log_probs < 1e-5 and gradient < 3e-4


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernels_of_layers_do_what_float64_does() -> None:
    done = interpreted("-m", "tests.workers.models.layer_kernel_cases", timeout=300)
    assert done.stdout == "same\n", done.stderr


class TestOnAGpu:
    pytestmark = on_gpu

    def test_the_kernels_of_layers_do_what_float64_does(self) -> None:
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            for name, off in all_of("cuda", dtype):
                assert max(off) < bound, (name, dtype, off)

    @pytest.mark.parametrize("has_adapters", [False, True], ids=["all weights", "an adapter"])
    @pytest.mark.parametrize("name", OTHERS)
    def test_every_family_learns_as_near_to_float32_as_its_modules_do(self, name: str, has_adapters: bool) -> None:
        model = other_model(name, nf4=False, has_adapters=has_adapters)
        if not has_adapters:
            model.requires_grad_(True)
        fast_graphs.enable(model, with_graphs=False)
        assert is_fast(model)
        exact = copy.deepcopy(model).float()
        truth = passed(exact, is_written_out=False)
        ours, theirs = (passed(model, is_written_out=each) for each in (True, False))
        assert all(torch.equal(*pair) for pair in zip(ours, passed(model, is_written_out=True), strict=True))
        for off, their_off in zip(apart(ours, truth), apart(theirs, truth), strict=True):
            assert off <= 1.3 * their_off + 1e-3

    @pytest.mark.parametrize("name", ["phi-4-mini", "gemma3-1b", "ministral3"])
    def test_in_4_bits_graphs_give_what_launches_gave(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        model = other_model(name, nf4=True, has_adapters=True)
        fast_graphs.enable(model, with_graphs=True)
        runner = model.fast_runner
        monkeypatch.setattr(runner, "_measured", lambda work: (True, work()))
        for _ in range(3):
            found = passed(model, is_written_out=True)
        assert runner._graphs
        monkeypatch.setattr(runner, "may_capture", False)
        assert all(torch.equal(*pair) for pair in zip(found, passed(model, is_written_out=True), strict=True))
        assert max(apart(found, passed(model, is_written_out=False))[1:]) < 0.1
