"""The head in chunks: log-probabilities and entropies are those of full logits, also in 16 bits and on a card."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.interpreter import interpreted
from tests.workers.loss.fused_cases import Allocations, Case, assert_same, case, gradients, plain_log_probs, plain_loss
from workers.loss.fused_loss import Terms, fused_entropy, fused_log_probs, fused_loss, fused_policy_loss
from workers.models import packing
from workers.models.log_probs import Scored, score

pytestmark = pytest.mark.usefixtures("one_thread")

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize(("dtype", "value", "slope"), [(torch.float64, 1e-12, 1e-10), (torch.float32, 1e-5, 1e-5)])
def test_row_17_log_probs_and_entropies_and_row_18_their_gradients_are_those_of_full_logits(
    chunk: int, temperature: float, dtype: torch.dtype, value: float, slope: float
) -> None:
    c = case(dtype=dtype, has_bias=True)
    found = fused_log_probs(c.hidden, c.weight, c.tokens.targets, temperature=temperature, chunk=chunk, bias=c.bias)
    expected = plain_log_probs(c.hidden, c.weight, c.tokens.targets, temperature, c.bias)
    assert_same(found, expected, value)
    weights = torch.linspace(-1, 1, len(found[0]), dtype=dtype)
    for of_entropy in (0.0, 0.3):
        mine, theirs = (((one[0] + of_entropy * one[1]) * weights).sum() for one in (found, expected))
        mine, theirs = (torch.autograd.grad(loss, c[:3], retain_graph=True) for loss in (mine, theirs))
        assert_same(mine, theirs, slope)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize(("scale", "cap"), [(0.3, None), (1.0, 2.0), (2.5, 1.5)])
def test_scaled_and_capped_logits_have_the_log_probs_entropies_and_gradients_of_full_ones(
    chunk: int, scale: float, cap: float | None
) -> None:
    c = case(has_bias=True)

    def truth() -> tuple[Tensor, Tensor]:
        logits = (c.hidden @ c.weight.t() + c.bias) * scale
        log_p = torch.log_softmax((logits if cap is None else (logits / cap).tanh() * cap) / 0.7, -1)
        return log_p.gather(1, c.tokens.targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)

    weights = torch.linspace(-1, 1, len(c.tokens.targets), dtype=torch.float64)
    found = fused_log_probs(
        c.hidden, c.weight, c.tokens.targets, temperature=0.7, chunk=chunk, bias=c.bias, scale=scale, cap=cap
    )
    expected = truth()
    assert_same(found, expected, 1e-12)
    mine, theirs = (((one[0] + 0.3 * one[1]) * weights).sum() for one in (found, expected))
    assert_same(torch.autograd.grad(mine, c[:3]), torch.autograd.grad(theirs, c[:3]), 1e-10)
    once, log_probs, _ = fused_loss(
        c.hidden, c.weight, c.tokens.targets, lambda p, h, part: (p + 0.3 * h) * weights[part], temperature=0.7,
        chunk=chunk, bias=c.bias, scale=scale, cap=cap,
    )  # fmt: skip
    assert_same([log_probs], [expected[0].detach()], 1e-12)
    again = truth()
    assert_same(
        torch.autograd.grad(once, c[:3]),
        torch.autograd.grad(((again[0] + 0.3 * again[1]) * weights).sum(), c[:3]),
        1e-10,
    )


def test_row_21_entropy_of_a_fair_choice_and_of_a_certain_one() -> None:
    fair = fused_entropy(torch.zeros(2, 3), torch.randn(9, 3))
    assert fair.tolist() == pytest.approx([math.log(9)] * 2, abs=1e-6)
    # exp(500) is no float32.
    assert fused_entropy(torch.eye(3) * 500, torch.eye(3)).tolist() == pytest.approx([0.0] * 3, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c._replace(hidden=c.hidden[:, :3]), r"hidden, weight and targets are \[13, 3\] \[97, 16\] \[13\]"),
        (lambda c: c._replace(hidden=c.hidden[:4]), r"\[4, 16\] \[97, 16\] \[13\]"),
        (lambda c: c._replace(weight=c.weight.float()), "torch.float64 and the head's weights torch.float32"),
    ],
)
def test_shapes_and_dtypes_that_do_not_fit_are_refused(change: Any, told: str) -> None:
    c = change(case())
    with pytest.raises(ValueError, match=told):
        fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=1.0)


# --- 16 bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "slope"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_with_16_bit_inputs_sums_are_taken_in_32(dtype: torch.dtype, slope: float) -> None:
    c = case(20, 64, 8209, dtype=dtype)
    double = Case(*(one if one is None else one.detach().double().requires_grad_() for one in c[:3]), c.tokens)
    log_probs, entropy = fused_log_probs(c.hidden, c.weight, c.tokens.targets)
    assert log_probs.dtype == entropy.dtype == torch.float32
    assert_same(
        [log_probs.double(), entropy.double()],
        plain_log_probs(double.hidden, double.weight, c.tokens.targets, 1.0),
        2e-5,
    )
    found = gradients(fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=20.0).loss, c)
    expected = gradients(plain_loss(double, Terms(), 20.0, 1.0), double)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() < slope * other.norm()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_a_scaled_loss_keeps_gradients_that_float16_could_not_hold(device: str) -> None:
    c = case(dtype=torch.float16, is_frozen=True, device=device)
    loss = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=1e8).loss
    (found,) = gradients(loss * 2.0**24, c)
    (expected,) = gradients(fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=1e8 / 2**24).loss, c)
    assert expected.count_nonzero() > 0.9 * expected.numel() > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_sums_over_a_large_vocabulary_stay_exact() -> None:
    c = case(3, 4, 60_013, dtype=torch.float32)
    found = fused_log_probs(c.hidden, c.weight, c.tokens.targets)
    expected = plain_log_probs(c.hidden.double(), c.weight.double(), c.tokens.targets, 1.0)
    assert_same([one.double() for one in found], expected, 5e-6)


# --- the policy update's way to it ---------------------------------------------------------------------------------


@pytest.fixture
def model() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=503, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
                         tie_word_embeddings=True)  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def a_pack() -> packing.Pack:
    prompts = [(1, 2, 3)] * 3 + [(400, 5)]
    completions = [(7, 8, 9, 10, 11), (7,), (12, 300), tuple(range(60, 100))]
    return packing.pack(packing.rows_of(packing.units_of(prompts, completions, 64), 64))


@pytest.mark.parametrize("entropy_needs_grad", [False, True])
def test_scores_in_chunks_are_those_of_all_logits_at_once(model: Any, entropy_needs_grad: bool) -> None:
    pack, results = a_pack(), []
    for max_logits in (1 << 25, 5 * 503):
        with Allocations() as seen:
            scored = score(model, pack, 0.8, entropy_needs_grad=entropy_needs_grad, max_logits=max_logits)
            model.zero_grad()
            loss = (scored.log_probs * torch.linspace(-1, 1, len(pack.targets))).sum()
            (loss + scored.entropy.mean() if entropy_needs_grad else loss).backward()
        assert scored.entropy.requires_grad is entropy_needs_grad
        results.append((scored, {name: one.grad.clone() for name, one in model.named_parameters()}, seen.largest))
    (whole, of_whole, largest), (chunks, of_chunks, most) = results
    assert_same(chunks, whole, 1e-5)
    assert_same(of_chunks.values(), of_whole.values(), 1e-5)
    assert most == model.lm_head.weight.numel() < largest == 48 * 503  # the gradient of the tied head itself


def test_scores_in_chunks_are_the_same_each_time(model: Any) -> None:
    def once() -> tuple[Scored, list[Tensor]]:
        model.zero_grad()
        scored = score(model, a_pack(), 1.0, max_logits=5 * 503)
        scored.log_probs.sum().backward()
        return scored, [one.grad.clone() for one in model.parameters()]

    (first, of_first), (second, of_second) = once(), once()
    assert all(torch.equal(a, b) for a, b in zip((*first, *of_first), (*second, *of_second), strict=True))


# --- on a card -----------------------------------------------------------------------------------------------------

KERNELS = """
import torch
from workers.loss.fused_kernels import TorchChunk, TritonChunk

torch.manual_seed(0)
for rows, width, dtype in ((3, 1000, torch.float32), (4, 8193, torch.float16), (1, 1, torch.float32)):
    weight, targets = torch.empty(width, 1, dtype=dtype), torch.randint(width, (rows,))
    logits = torch.randn(rows, width) * 6
    for e in (None, torch.randn(rows)):
        g, found = torch.randn(rows), []
        for kind in (TorchChunk, TritonChunk):
            chunk = kind((rows + 1, width), weight)
            chunk.logits[:rows] = logits
            found.append([*chunk.read(targets), chunk.gradient(targets, g, e).float().clone()])
        for one, other in zip(*found):
            torch.testing.assert_close(one, other, rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=2e-5)
print("same")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_kernels_do_what_pytorch_does() -> None:
    done = interpreted("-c", KERNELS, timeout=110)
    assert done.stdout == "same\n", done.stderr


@needs_cuda
@pytest.mark.parametrize(("dtype", "slope"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3), (torch.float32, 1e-4)])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_on_a_card_the_loss_is_that_of_double_precision(dtype: torch.dtype, slope: float, is_frozen: bool) -> None:
    c = case(70, 256, 32003, dtype=dtype, device="cuda", is_frozen=is_frozen, everything=True)
    terms = Terms(kl_coef=0.1, entropy_coef=0.01)
    double = Case(*(one if one is None else one.detach().double().requires_grad_() for one in c[:3]), c.tokens)
    found = fused_policy_loss(c.hidden, c.weight, c.tokens, terms, divisor=70.0, temperature=0.9, chunk=32)
    expected = plain_loss(double, terms, 70.0, 0.9)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)
    for one, other in zip(gradients(found.loss, c), gradients(expected, double), strict=False):
        assert (one.double() - other).norm() < slope * other.norm()


@needs_cuda
def test_on_a_card_the_kernels_are_used() -> None:
    from workers.loss.fused_kernels import has_triton

    assert has_triton(torch.device("cuda", 0)) is (find_spec("triton") is not None)
