"""A decoder's small operations as single kernels: the same layers, in fewer launches."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2 import modeling_qwen2

from workers.models import fused_layers

on_gpu = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


def tiny(dtype: torch.dtype, device: str) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.to(device, dtype)


@pytest.fixture(autouse=True)
def rotary_again() -> Any:
    before = modeling_qwen2.apply_rotary_pos_emb
    yield
    modeling_qwen2.apply_rotary_pos_emb = before


def learned(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Log-probabilities of the next ids, and the gradient of their sum by each parameter."""
    model.zero_grad()
    logits = model(ids).logits[:, :-1]
    log_probs = torch.log_softmax(logits.double(), -1).gather(-1, ids[:, 1:, None])
    log_probs.sum().backward()
    found = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
    return found | {"log_probs": log_probs.detach()}


def test_norms_in_float32_are_transformers_up_to_rounding() -> None:
    plain = tiny(torch.float32, "cpu")
    fused = copy.deepcopy(plain)
    fused_layers.fuse(fused, with_triton=False)
    ids = torch.arange(60).view(2, 30)
    expected = learned(plain, ids)
    for name, value in learned(fused, ids).items():
        assert float((value - expected[name]).norm()) <= 1e-5 * float(expected[name].norm()), name


def test_names_and_weights_stay() -> None:
    plain = tiny(torch.float32, "cpu")
    fused = copy.deepcopy(plain)
    fused_layers.fuse(fused, with_triton=True)
    theirs = fused.state_dict()
    assert list(theirs) == list(plain.state_dict())
    assert all(torch.equal(value, theirs[name]) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_nothing_changes(dtype: torch.dtype) -> None:
    model = tiny(dtype, "cpu")
    kinds = [type(module) for module in model.modules()]
    fused_layers.enable(model)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_rotary_embeddings_that_the_kernel_does_not_take_are_transformers(device: str) -> None:
    query, key = torch.randn(2, 3, 5, 16, device=device), torch.randn(2, 1, 5, 16, device=device)
    angles = torch.randn(2, 5, 16, device=device)
    rotary = fused_layers.FusedRotary(modeling_qwen2.apply_rotary_pos_emb)
    found = rotary(query, key, angles.cos(), angles.sin())
    expected = modeling_qwen2.apply_rotary_pos_emb(query, key, angles.cos(), angles.sin())
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_kernels_that_cannot_run_are_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    fused_layers.has_kernels.cache_clear()
    assert not fused_layers.has_kernels(torch.device("cpu"))
    assert "layers run without their Triton kernels: " in caplog.text


def test_memory_that_ends_while_kernels_are_tried_is_no_reason_against_them() -> None:
    def tried() -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        fused_layers.problem_of(tried)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_16_bits_log_probs_and_gradients_are_as_near_to_float64_as_those_of_plain_layers() -> None:
    exact = tiny(torch.float64, "cuda")
    plain = tiny(torch.bfloat16, "cuda")
    exact.load_state_dict(plain.state_dict())
    fused = copy.deepcopy(plain)
    ids = torch.arange(240, device="cuda").view(4, 60)
    truth, expected = learned(exact, ids), learned(plain, ids)
    fused_layers.enable(fused)
    assert fused_layers.has_kernels(fused.device)
    for kind in (fused_layers.FusedNorm, fused_layers.FusedMLP):
        assert any(isinstance(one, kind) for one in fused.modules())
    assert isinstance(modeling_qwen2.apply_rotary_pos_emb, fused_layers.FusedRotary)
    found = learned(fused, ids)
    for name, value in truth.items():
        off, plain_off = (float((one[name] - value).norm() / value.norm()) for one in (found, expected))
        assert off <= 1.2 * plain_off + 1e-4, (name, off, plain_off)
