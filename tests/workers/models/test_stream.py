"""The residual stream stays in float32 where a model computes in 16 bits."""

from __future__ import annotations

import copy
import importlib.util
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from profiles.schema import Adapter
from workers.models import adapters, fast_graphs, packing
from workers.models.fast_layers import Given
from workers.models.fused_layers import normed, stream_of
from workers.models.log_probs import score
from workers.rollout.engine import Request, Sampling
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.step import TorchOperations
from workers.rollout.graph.step_weights import Sum, Weights
from workers.rollout.native import NativeEngine

pytestmark = pytest.mark.usefixtures("one_thread")
OWN = Adapter(rank=4, alpha=8.0, implementation="own", targets=("q_proj", "o_proj"))
LENGTH = 48


@cache
def deep() -> Any:
    """Twelve layers in float32, of numbers that bfloat16 has."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=12, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, eos_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).bfloat16().float()
    return model.eval()


def fast() -> Any:
    """In bfloat16, with an adapter that says nothing yet."""
    model = copy.deepcopy(deep()).bfloat16()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    adapters.inject(model, OWN, 0)
    fast_graphs.enable(model, with_graphs=False)
    assert model.fast_runner is not None
    return model


def drawn_ids() -> list[tuple[int, ...]]:
    drawn = torch.randint(256, (32, LENGTH), generator=torch.Generator().manual_seed(1))
    return [tuple(row) for row in drawn.tolist()]


def log_probs_of(model: Any, ids: list[tuple[int, ...]]) -> Tensor:
    """By plain modules, of all but the first of each row: [N, T - 1]."""
    rows = torch.tensor(ids)
    with torch.no_grad():
        logits = model(rows).logits[:, :-1].float()
    return torch.log_softmax(logits, -1).gather(-1, rows[:, 1:, None])[..., 0]


def apart(log_probs: Tensor, model: Any, ids: list[tuple[int, ...]]) -> float:
    """The mean difference from those of `model` by plain modules, in nats."""
    return float((log_probs - log_probs_of(model, ids)).abs().mean())


def test_log_probs_that_are_trained_on_are_nearer_to_float32_than_those_of_plain_modules() -> None:
    ids = drawn_ids()
    units = packing.units_of([row[:1] for row in ids], [row[1:] for row in ids], row_tokens=LENGTH)
    pack = packing.pack(packing.rows_of(units, LENGTH))
    with torch.no_grad():
        scored = score(fast(), pack, 1.0).log_probs
    found = torch.stack([scored[pack.owners == row] for row in range(len(ids))])
    plain = log_probs_of(copy.deepcopy(deep()).bfloat16(), ids)
    assert apart(found, deep(), ids) < 0.8 * apart(plain, deep(), ids)


@pytest.mark.parametrize("engine", [GraphEngine, NativeEngine])
def test_log_probs_of_drawn_tokens_are_nearer_to_float32_than_those_of_plain_modules(engine: Any) -> None:
    requests = [Request(row[:1], seed) for seed, row in enumerate(drawn_ids())]
    drawn = engine(fast()).generate(requests, Sampling(max_new_tokens=LENGTH - 1, ignore_stop=True))
    ids = [(*one.prompt_ids, *one.completion_ids) for one in drawn]
    found = torch.tensor([one.log_probs for one in drawn])
    plain = log_probs_of(copy.deepcopy(deep()).bfloat16(), ids)
    assert apart(found, deep(), ids) < 0.9 * apart(plain, deep(), ids)


def test_where_plain_modules_learn_rollouts_round_the_sum_as_they_do() -> None:
    model = copy.deepcopy(deep()).bfloat16()
    assert (stream_of(model), stream_of(fast()), stream_of(deep())) == (torch.bfloat16, torch.float32, torch.float32)
    tokens = torch.tensor([3, 4])
    for one in (model, fast()):
        weights = Weights(one)
        residual, norm = TorchOperations().embed(tokens, weights), weights.layers[0].before_attention
        parts = torch.randn(2, 64).bfloat16()
        residual, x = TorchOperations().add_norm(residual, parts, None, norm, weights.plain)
        assert (residual.dtype, x.dtype) == (stream_of(one), torch.bfloat16)


def test_gradients_are_nearer_to_float32_than_those_of_plain_modules() -> None:
    ids = torch.tensor(drawn_ids())

    def gradient(model: Any, hidden_of: Any) -> Tensor:
        found = hidden_of(model)
        found.float().pow(2).mean().backward()
        return torch.cat([one.grad.double().flatten() for name, one in sorted(adapters.adapter_of(model).items())])

    def plain(dtype: torch.dtype) -> Tensor:
        model = copy.deepcopy(deep()).to(dtype)
        adapters.inject(model, OWN, 0)
        return gradient(model, lambda model: model.model(ids).last_hidden_state @ model.lm_head.weight.T)

    def by_stack(model: Any) -> Tensor:
        hidden = model.model.embed_tokens(ids)
        positions = torch.arange(LENGTH)[None]
        segments = torch.zeros(1, 1, LENGTH, 2, dtype=torch.int32)
        learnt, out = model.fast_runner.learn(
            Given(segments, {"": torch.stack(model.model.rotary_emb(hidden, positions))}), hidden
        )
        assert out.dtype == torch.float32
        end = out.detach().requires_grad_()
        logits = normed(model.model.norm, end) @ model.lm_head.weight.T
        logits.float().pow(2).mean().backward()
        learnt(end.grad)
        each: list[Any] = [one.grad for _, one in sorted(adapters.adapter_of(model).items())]
        return torch.cat([one.double().flatten() for one in each])

    exact, coarse, fine = plain(torch.float32), plain(torch.bfloat16), by_stack(fast())
    assert float((fine - exact).norm()) < float((coarse - exact).norm())


def test_a_norm_of_the_sum_is_rounded_once() -> None:
    norm = Qwen2RMSNorm(64).bfloat16()
    norm.weight.data.uniform_(0.5, 2.0)
    stream = torch.randn(3, 5, 64)
    exact = rms_norm(stream.double(), (64,), norm.weight.double(), norm.variance_epsilon)
    found = normed(norm, stream)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - exact).abs().div(exact.abs()).max()) <= 2**-8


def test_a_decode_step_adds_to_the_sum_without_rounding_it() -> None:
    residual, parts = torch.randn(2, 4, 64)
    weight = torch.ones(64, dtype=torch.bfloat16)
    found, x = TorchOperations().add_norm(
        residual, parts.bfloat16(), None, weight, Sum(1e-6, torch.float32, torch.bfloat16)
    )
    assert torch.equal(found, residual + parts.bfloat16().float())
    assert x.dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("width", [64, 896, 1536, 2048])
def test_the_kernel_of_a_norm_and_its_gradient_are_those_of_float64(width: int) -> None:
    norm = Qwen2RMSNorm(width).bfloat16().cuda().requires_grad_(False)
    norm.weight.uniform_(0.5, 2.0)
    stream = (3 * torch.randn(2, 37, width, device="cuda")).requires_grad_()
    upstream = torch.randn(2, 37, width, device="cuda").bfloat16()
    normed(norm, stream).backward(upstream)
    exact = stream.detach().double().requires_grad_()
    expected = rms_norm(exact, (width,), norm.weight.double(), norm.variance_epsilon)
    expected.backward(upstream.double())
    assert torch.equal(normed(norm, stream.detach()), normed(norm, stream.detach()))
    assert float((normed(norm, stream.detach()).double() - expected).norm() / expected.norm()) < 2**-8
    assert stream.grad is not None and exact.grad is not None
    assert float((stream.grad.double() - exact.grad).norm() / exact.grad.norm()) < 1e-5
