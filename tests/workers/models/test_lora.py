"""Our own LoRA against peft's: the same numbers, names and files, and never a stale copy."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor, nn

from profiles.schema import Adapter, Model, Optimizer, Profile
from tests.workers.models.test_adapters import pack_of
from workers.models import adapters, lora, optimizer, recompute
from workers.models.log_probs import score
from workers.models.policy import open_policy

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TINY = Model(random_init="qwen2-tiny")
OWN = Adapter(rank=4, alpha=8.0, implementation="own")
PEFT = replace(OWN, implementation="peft")


def model_of(adapter: Adapter, model: Model = TINY) -> Any:
    return open_policy(Profile(name="x", model=model, adapter=adapter), None, CPU).model


def scramble(model: Any) -> None:
    """An adapter that says something, the same one whoever computes with it."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in adapters.adapter_of(model).values():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


def scored(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities of a pack, and the gradients of the adapter's matrices."""
    model.zero_grad(set_to_none=True)
    found = score(model, pack_of(model), 0.7).log_probs
    found.sum().backward()
    return found.detach(), {name: one.grad.clone() for name, one in adapters.adapter_of(model).items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_row_25_outputs_and_gradients_are_those_of_peft(quantization: Any, rslora: bool) -> None:
    pair = [model_of(replace(one, rslora=rslora), replace(TINY, quantization=quantization)) for one in (OWN, PEFT)]
    for model in pair:
        scramble(model)
    (ours, our_gradients), (theirs, their_gradients) = map(scored, pair)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-6)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(
            our_gradients[name], gradient, atol=1e-6 * float(gradient.abs().max() + 1), rtol=1e-4
        )


@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=2), rank=st.integers(1, 7), sizes=st.tuples(
        st.integers(1, 9), st.integers(1, 9)
    ), bias=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_layer_is_the_formula_in_float64(
    shape: list[int], rank: int, sizes: tuple[int, int], bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    base = nn.Linear(*sizes, bias=bias).double().requires_grad_(False)
    layer = lora.LoraLinear(base, rank, 0.75, seed)
    with torch.no_grad():
        for matrix in layer.matrices:
            matrix.copy_(torch.randn_like(matrix))
    a, b = (matrix.detach().double().requires_grad_() for matrix in layer.matrices)
    x = torch.randn(*shape, sizes[0], dtype=torch.float64, requires_grad=True)
    same_x = x.detach().clone().requires_grad_()
    found = layer(x)
    expected = base(same_x) + 0.75 * (same_x @ a.t() @ b.t())
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, same_x.grad, atol=1e-12, rtol=1e-12)
    for matrix, wanted in zip(layer.matrices, (a, b), strict=True):
        assert matrix.grad is not None and wanted.grad is not None
        torch.testing.assert_close(matrix.grad, wanted.grad.float(), atol=1e-5, rtol=1e-5)
    assert all(parameter.grad is None for parameter in base.parameters())


def test_in_bfloat16_it_stays_within_a_hundredth_of_float32() -> None:
    exact, rounded = model_of(OWN), model_of(OWN, replace(TINY, dtype="bfloat16"))
    for model in (exact, rounded):
        scramble(model)
    layer, other = (model.model.layers[0].self_attn.q_proj for model in (exact, rounded))
    x = torch.randn(64, layer.in_features, generator=torch.Generator().manual_seed(1))
    other.base_layer.weight.data.copy_(layer.base_layer.weight.data)
    found, expected = other(x.bfloat16()).detach(), layer(x).detach()
    assert found.dtype == torch.bfloat16
    assert float((found.float() - expected).norm() / expected.norm()) < 1e-2


def test_row_25_a_is_drawn_within_its_bound_from_seed_and_name_alone_and_b_is_zero() -> None:
    whole, part = model_of(OWN), model_of(replace(OWN, targets=("v_proj",)))
    found = adapters.adapter_of(whole)
    for name, tensor in found.items():
        if ".lora_B." in name:
            assert not tensor.any()
        else:
            bound = 1 / math.sqrt(tensor.shape[1])
            drawn = tensor.detach()
            assert 0.9 * bound < float(drawn.abs().max()) <= bound and abs(float(drawn.mean())) < 0.2 * bound
    assert all(torch.equal(found[name], tensor) for name, tensor in adapters.adapter_of(part).items())
    other = adapters.adapter_of(open_policy(Profile(name="x", model=TINY, adapter=OWN), None, CPU).model)
    assert all(torch.equal(found[name], tensor) for name, tensor in other.items())
    first, second = (found[f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_A.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("adapter", [OWN, PEFT], ids=["own", "peft"])
def test_row_15_a_disabled_adapter_is_the_base_bit_by_bit_and_comes_back(adapter: Adapter, quantization: Any) -> None:
    knobs = replace(TINY, quantization=quantization)
    base, model = model_of(Adapter(), knobs) if quantization == "none" else None, model_of(adapter, knobs)
    ids = torch.tensor([[5, 9, 20, 31]])
    with torch.no_grad():
        untouched = model(ids).logits if base is None else base(ids).logits  # B is zero, so nothing is added yet
        scramble(model)
        before = model(ids).logits
        with adapters.disabled(model):
            assert torch.equal(model(ids).logits, untouched)
        assert torch.equal(model(ids).logits, before) and not torch.equal(before, untouched)


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        pytest.param(("q_proj", "k_proj", "v_proj", "o_proj"), 4_358_144, id="attention"),
        pytest.param(Adapter().targets, 18_464_768, id="all"),
    ],
)
def test_row_27_the_real_shape_has_so_many_parameters(targets: tuple[str, ...], count: int) -> None:
    """Qwen2 of 1.5B with an untied head, made of nothing."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    make: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(config)
    assert sum(one.numel() for one in model.parameters()) == 1_777_088_000
    adapters.inject(model, Adapter(rank=16, alpha=32, targets=targets, implementation="own"), 0)
    assert sum(one.numel() for one in adapters.adapter_of(model).values()) == count
    assert sum(one.numel() for one in model.parameters() if one.requires_grad) == count


def save_adapter(model: Any, adapter: Adapter, directory: Path) -> Path:
    directory.mkdir()
    adapters.AdapterWeights(model).save(directory / adapters.WEIGHTS)
    (directory / adapters.CONFIG).write_bytes(adapters.config_json(adapter, "base"))
    return directory


def test_row_26_peft_loads_what_we_save_without_a_warning_and_saves_the_same_bits(tmp_path: Path) -> None:
    from peft import PeftModel

    ours = model_of(OWN)
    scramble(ours)
    saved = save_adapter(ours, OWN, tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what peft says about missing and unexpected keys
        theirs = PeftModel.from_pretrained(model_of(Adapter()), str(saved))
        theirs.save_pretrained(str(tmp_path / "theirs"), save_embedding_layers=False)  # else it asks the network
    first, second = load_file(saved / adapters.WEIGHTS), load_file(tmp_path / "theirs" / adapters.WEIGHTS)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert "base_model.model.model.layers.0.mlp.gate_proj.lora_B.weight" in first
    again = model_of(OWN)
    adapters.AdapterWeights(again).load(tmp_path / "theirs" / adapters.WEIGHTS)
    assert torch.equal(scored(again)[0], scored(ours)[0])


@pytest.mark.parametrize(("before", "after"), [(OWN, PEFT), (PEFT, OWN)], ids=["own to peft", "peft to own"])
@pytest.mark.parametrize("kind", ["adamw", "adamw8bit"])
def test_one_implementation_goes_on_where_the_other_stopped(
    before: Adapter, after: Adapter, kind: Any, tmp_path: Path
) -> None:
    """Weights and moments have the same names, so nothing is converted."""
    knobs = Optimizer(kind=kind, learning_rate=1e-2, warmup_steps=0)
    models = [model_of(replace(one, rank=64)) for one in (before, after)]
    optimizers = [optimizer.build(model, knobs) for model in models]
    scored(models[0])
    optimizers[0].step()
    adapters.AdapterWeights(models[0]).save(tmp_path / "weights")
    optimizer.OptimizerState(optimizers[0], models[0]).save(tmp_path / "moments")
    adapters.AdapterWeights(models[1]).load(tmp_path / "weights")
    optimizer.OptimizerState(optimizers[1], models[1]).load(tmp_path / "moments")
    for model, stepper in zip(models, optimizers, strict=True):
        scored(model)
        stepper.step()
    first, second = (adapters.adapter_of(model) for model in models)
    for name, tensor in first.items():  # a gradient near zero may give Adam the other sign
        assert float((tensor - second[name]).abs().mean()) < 1e-4, name


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "foreach", "offload"])
def test_the_next_forward_pass_sees_a_step_of_any_optimiser(kind: str) -> None:
    """Fused and 8-bit optimisers change weights without autograd's knowledge: the bfloat16 copies would be stale."""
    model = model_of(replace(OWN, rank=64), replace(TINY, dtype="bfloat16"))
    scramble(model)
    trained = [one for one in model.parameters() if one.requires_grad]
    stepper: Any
    if kind == "foreach":
        stepper = torch.optim.AdamW(trained, lr=0.5, foreach=True)
    elif kind == "offload":
        from workers.models.master import MasterWeights

        named = {name: one for name, one in model.named_parameters() if one.requires_grad}
        stepper = MasterWeights(named, lambda copies: torch.optim.AdamW(list(copies.values()), lr=0.5), CPU)
    else:
        stepper = optimizer.build(model, Optimizer(kind=kind, learning_rate=0.5, warmup_steps=0))  # type: ignore[arg-type]
    score(model, pack_of(model), 1.0).log_probs.sum().backward()
    with torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]))
    stepper.step()
    layer = model.model.layers[1].mlp.down_proj
    x = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(2)).bfloat16()
    found = layer(x)
    fresh = lora.LoraLinear(layer.base_layer, 64, layer.scaling[lora.ADAPTER], 0)
    for mine, theirs in zip(fresh.matrices, layer.matrices, strict=True):
        mine.data.copy_(theirs.data)
    assert torch.equal(found, fresh(x))
    stepper.zero_grad()
    score(
        model, pack_of(model), 1.0
    ).log_probs.sum().backward()  # copies made in inference mode could not be learnt from


def test_recomputation_changes_no_gradient() -> None:
    model = model_of(OWN).double()  # in which another order of sums is no difference
    scramble(model)
    found, expected = scored(model)
    recompute.enable(model)
    again, gradients = scored(model)
    torch.testing.assert_close(again, found, atol=1e-6, rtol=0)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-6)


def test_it_keeps_less_for_the_backward_pass_than_peft() -> None:
    """In bfloat16 peft keeps each input in float32 too."""
    kept = {}
    for name, adapter in {"own": OWN, "peft": PEFT}.items():
        model = model_of(adapter, replace(TINY, dtype="bfloat16"))
        seen: dict[int, int] = {}

        def keep(tensor: Tensor, seen: dict[int, int] = seen) -> Tensor:
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            score(model, pack_of(model), 1.0).log_probs.sum()
        kept[name] = sum(seen.values())
    assert kept["own"] < kept["peft"]
