"""The policy loss in one pass: same numbers and gradients as the plain one, and never the logits of all tokens."""

from __future__ import annotations

import gc
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.loss.fused_cases import Allocations, Case, assert_same, case, gradients, plain_log_probs, plain_loss
from workers.loss.fused_loss import (
    Terms,
    Tokens,
    diagnostics,
    fused_entropy,
    fused_log_probs,
    fused_policy_loss,
    token_losses,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- equality ------------------------------------------------------------------------------------------------------


TERMS = [
    pytest.param(Terms(), id="clip"),
    pytest.param(Terms(clip_ratio_high=0.28, entropy_coef=0.01), id="entropy bonus"),
    pytest.param(Terms(kl_coef=0.1), id="KL"),
    pytest.param(Terms(0.1, 0.4, kl_coef=0.05, entropy_coef=-0.02), id="all"),
]


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_row_18_the_loss_and_its_gradients_are_those_of_the_plain_loss(
    terms: Terms, everything: bool, dtype: torch.dtype, atol: float
) -> None:
    c = case(dtype=dtype, has_bias=True, everything=everything or terms.kl_coef > 0)
    found = fused_policy_loss(
        c.hidden, c.weight, c.tokens, terms, divisor=5.0, temperature=0.9, chunk=4, bias=c.bias
    ).loss
    expected = plain_loss(c, terms, 5.0, 0.9)
    assert_same([found], [expected], atol)
    assert_same(gradients(found, c), gradients(expected, c), atol)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(0, 20), h=st.integers(1, 9), v=st.integers(1, 70), chunk=st.integers(1, 25),
    temperature=st.floats(0.3, 3.0), terms=st.sampled_from([param.values[0] for param in TERMS]),
    everything=st.booleans(), has_bias=st.booleans(), is_frozen=st.booleans(), by_token=st.booleans(),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_shapes_chunks_masks_and_terms_change_nothing(
    n: int, h: int, v: int, chunk: int, temperature: float, terms: Terms, everything: bool, has_bias: bool,
    is_frozen: bool, by_token: bool, seed: int,
) -> None:  # fmt: skip
    c = case(n, h, v, seed=seed, has_bias=has_bias, is_frozen=is_frozen, everything=everything or terms.kl_coef > 0)
    divisor = torch.linspace(1, 4, n, dtype=torch.float64) if by_token else 3.0
    found = fused_policy_loss(
        c.hidden, c.weight, c.tokens, terms, divisor=divisor, temperature=temperature, chunk=chunk, bias=c.bias
    ).loss
    expected = plain_loss(c, terms, divisor, temperature)
    assert_same([found], [expected], 1e-10)
    assert_same(gradients(found, c), gradients(expected, c), 1e-9)


@pytest.mark.parametrize("chunk", [1, 2, 9])
def test_gradcheck(chunk: int) -> None:
    c = case(5, 3, 7, has_bias=True, everything=True)
    terms = Terms(0.9, 0.9, kl_coef=0.1, entropy_coef=0.1)  # wide bounds: at a clip's edge no difference quotient holds

    def one_pass(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return 3 * fused_policy_loss(hidden, weight, c.tokens, terms, divisor=2.0, chunk=chunk, bias=bias).loss

    def log_probs(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return fused_log_probs(hidden, weight, c.tokens.targets, temperature=1.3, chunk=chunk, bias=bias)

    assert torch.autograd.gradcheck(one_pass, c[:3])
    assert torch.autograd.gradcheck(log_probs, c[:3])


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_micro_batches_add_up_to_the_whole(rows: int) -> None:
    c = case(12, everything=True)
    terms = Terms(kl_coef=0.1)
    whole = gradients(fused_policy_loss(c.hidden, c.weight, c.tokens, terms, divisor=12.0, chunk=5).loss, c)
    parts = [slice(begin, begin + rows) for begin in range(0, 12, rows)]
    losses = [fused_policy_loss(c.hidden[p], c.weight, c.tokens[p], terms, divisor=12.0, chunk=5).loss for p in parts]
    assert_same(gradients(torch.stack(losses).sum(), c), whole, 1e-12)


# --- memory and work -----------------------------------------------------------------------------------------------


N, H, V, CHUNK_ROWS = 96, 4, 503, 5


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("is_frozen", [True, False])
def test_no_tensor_is_larger_than_a_chunk_of_logits(terms: Terms, is_frozen: bool) -> None:
    c = case(N, H, V, dtype=torch.float32, is_frozen=is_frozen, everything=True)
    with Allocations() as seen:
        found = fused_policy_loss(c.hidden, c.weight, c.tokens, terms, divisor=9.0, chunk=CHUNK_ROWS)
        found.loss.backward()  # type: ignore[no-untyped-call]
        log_probs, entropy = fused_log_probs(c.hidden, c.weight, c.tokens.targets, chunk=CHUNK_ROWS)
        (log_probs + entropy).sum().backward()
        fused_entropy(c.hidden, c.weight, chunk=CHUNK_ROWS)
    assert seen.largest == CHUNK_ROWS * V < N * V / 2


def test_the_same_record_catches_a_plain_loss() -> None:
    c = case(N, H, V, dtype=torch.float32)
    with Allocations() as seen:
        plain_loss(c, Terms(), 9.0, 1.0).backward()  # type: ignore[no-untyped-call]
    assert seen.largest == N * V


def test_in_one_pass_logits_are_made_once_and_a_frozen_head_has_no_gradient() -> None:
    c = case(N, H, V, dtype=torch.float32, is_frozen=True)
    with Allocations() as forward:
        loss = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=9.0, chunk=32).loss
    with Allocations() as backward:
        loss.backward()  # type: ignore[no-untyped-call]
    products = [sum("mm" in call for call in seen.calls) for seen in (forward, backward)]
    assert products == [2 * 3, 0]  # logits and the gradient of the hidden states, for each of three chunks
    assert c.weight.grad is None


@pytest.mark.parametrize("is_enabled", [False, True])
def test_without_gradient_only_logits_are_made(is_enabled: bool) -> None:
    c = case(N, H, V, is_frozen=True)
    hidden = c.hidden.detach() if is_enabled else c.hidden
    with torch.set_grad_enabled(is_enabled), Allocations() as seen:
        loss = fused_policy_loss(hidden, c.weight, c.tokens, Terms(), divisor=9.0, chunk=32).loss
    assert not loss.requires_grad
    assert sum("mm" in call for call in seen.calls) == 3
    assert not any("index_put" in call or "zeros_like" in call for call in seen.calls)
    assert_same([loss], [plain_loss(c, Terms(), 9.0, 1.0)], 1e-10)


def test_buffers_of_the_pass_are_gone_before_the_backward() -> None:
    c = case(N, H, V, is_frozen=True)
    loss = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=9.0, chunk=31).loss
    alive = [one.numel() for one in gc.get_objects() if type(one) is Tensor]
    assert loss.requires_grad and N * H in alive and 31 * V not in alive


# --- the terms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high", [0.2, 0.28])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.0, 1.2, 1.28, 1.5])
def test_row_11_a_token_beyond_the_bound_of_its_side_has_no_gradient(
    ratio: float, advantage: float, high: float
) -> None:
    c = case(1, 4, 5)
    now, _ = plain_log_probs(c.hidden.detach(), c.weight.detach(), c.tokens.targets, 1.0)
    # A hair inside: at the bound itself the last bit of exp decides.
    old = now - math.log(ratio) + (1e-9 if advantage > 0 else -1e-9)
    tokens = Tokens(c.tokens.targets, old, torch.tensor([advantage], dtype=torch.float64))
    found = fused_policy_loss(c.hidden, c.weight, tokens, Terms(0.2, high), divisor=1.0)
    inside = ratio <= 1 + high if advantage > 0 else ratio >= 0.8
    bounded = min(ratio, 1 + high) if advantage > 0 else max(ratio, 0.8)
    assert found.loss.item() == pytest.approx(-advantage * bounded, abs=1e-8)
    assert found.is_clipped.tolist() == [not inside]
    of_hidden = gradients(found.loss, c)[0]
    (by_log_prob,) = torch.autograd.grad(plain_log_probs(c.hidden, c.weight, tokens.targets, 1.0)[0], c.hidden)
    expected = -advantage * ratio * by_log_prob if inside else torch.zeros_like(by_log_prob)
    torch.testing.assert_close(of_hidden, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("delta", "value", "slope"), [(-1.0, 0.36788, 0.63212), (0.0, 0, 0), (1.0, 0.71828, -1.71828)])
def test_row_14_kl_to_the_reference_by_hand(delta: float, value: float, slope: float) -> None:
    c = case(1, 4, 5)
    now, _ = plain_log_probs(c.hidden, c.weight, c.tokens.targets, 1.0)
    tokens = Tokens(c.tokens.targets, now.detach(), torch.zeros(1).double(), ref_log_probs=now.detach() + delta)
    found = fused_policy_loss(c.hidden, c.weight, tokens, Terms(kl_coef=1.0), divisor=1.0).loss
    assert found.item() == pytest.approx(value, abs=1e-5)
    (by_log_prob,) = torch.autograd.grad(now, c.hidden)
    torch.testing.assert_close(gradients(found, c)[0], slope * by_log_prob, rtol=1e-4, atol=1e-6)


def test_a_weight_of_importance_sampling_multiplies_and_is_a_constant() -> None:
    c = case()
    weights = torch.full((13,), 2.0, dtype=torch.float64, requires_grad=True)
    weighted = replace(c.tokens, tis_weights=weights)
    loss = fused_policy_loss(c.hidden, c.weight, weighted, Terms(), divisor=1.0).loss
    single = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=1.0).loss
    assert loss.item() == pytest.approx(2 * single.item())
    log_probs, entropy = fused_log_probs(c.hidden, c.weight, c.tokens.targets)
    token_losses(log_probs, entropy, weighted, Terms()).sum().backward()  # type: ignore[no-untyped-call]
    assert weights.grad is None and c.hidden.grad is not None


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask"])
def test_weights_that_are_made_on_the_way_are_those_of_a_pass_before(mode: str) -> None:
    """Without them the engine's log-probs would be the old ones; with them they are the policy's own."""
    c, cap = case(40), 1.25
    log_probs, _ = (one.detach() for one in plain_log_probs(c.hidden, c.weight, c.tokens.targets, 1.0))
    weights = (log_probs - c.tokens.old_log_probs).exp()
    is_cut = weights > cap
    weights = weights.clamp(max=cap) if mode == "token_truncate" else weights * ~is_cut
    before = replace(c.tokens, old_log_probs=log_probs, tis_weights=weights)
    expected = fused_policy_loss(c.hidden, c.weight, before, Terms(), divisor=13.0, chunk=4).loss
    terms = Terms(is_detached=True, tis_cap=cap, tis_mode=mode)
    found = fused_policy_loss(c.hidden, c.weight, c.tokens, terms, divisor=13.0, chunk=4)
    assert_same([found.loss, *gradients(found.loss, c)], [expected, *gradients(expected, c)], 1e-10)
    told = diagnostics(found, c.tokens)
    assert 0 < told.tis_cut == int(is_cut.sum()) < 40
    assert told.tis_weight == pytest.approx(float(weights.sum()))
    assert told.ratio == 40 and told.ratio_max == 1 and told.clipped_high == told.clipped_low == 0
    assert told.mismatch > 0


def test_dropped_tokens_are_not_read_and_change_nothing() -> None:
    c = case(everything=True)
    keep = c.tokens.keep
    assert keep is not None and 0 < keep.sum() < 13
    found = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=13.0, chunk=4)
    assert found.read is not None and found.read.tolist() == keep.nonzero().flatten().tolist()
    assert len(found.log_probs) == int(keep.sum())
    spoiled = replace(c.tokens, old_log_probs=torch.where(keep, c.tokens.old_log_probs, math.nan))
    again = fused_policy_loss(c.hidden, c.weight, spoiled, Terms(), divisor=13.0, chunk=4)
    mine, theirs = gradients(found.loss, c), gradients(again.loss, c)
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
    assert not mine[0][~keep].any() and mine[0][keep].any()


def recomputed(c: Case, terms: Terms, divisor: float) -> Tensor:
    """The same loss the other way: log-probs of all tokens first, whose logits are made again in the backward pass."""
    log_probs, entropy = fused_log_probs(c.hidden, c.weight, c.tokens.targets, chunk=4, bias=c.bias)
    return token_losses(log_probs, entropy, c.tokens, terms).sum() / divisor


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_row_19_one_pass_gives_what_recomputing_gives(terms: Terms, dtype: torch.dtype, atol: float) -> None:
    c = case(dtype=dtype, has_bias=True, everything=terms.kl_coef > 0)
    once = fused_policy_loss(c.hidden, c.weight, c.tokens, terms, divisor=5.0, chunk=4, bias=c.bias).loss
    twice = recomputed(c, terms, 5.0)
    assert_same([once, *gradients(once, c)], [twice, *gradients(twice, c)], atol)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_row_23_a_head_that_reads_the_kept_tokens_alone_gives_what_one_that_reads_all_gives(is_frozen: bool) -> None:
    c = case(40, dtype=torch.float32, everything=True, is_frozen=is_frozen)
    gathered = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=40.0, chunk=7)
    full = recomputed(c, Terms(), 40.0)
    assert gathered.read is not None and len(gathered.read) < 40
    assert_same([gathered.loss, *gradients(gathered.loss, c)], [full, *gradients(full, c)], 1e-6)


def test_a_mask_that_keeps_nothing_gives_no_loss_and_no_gradient() -> None:
    c = case(everything=True)
    nothing = replace(c.tokens, keep=torch.zeros(13, dtype=torch.bool))
    loss = fused_policy_loss(c.hidden, c.weight, nothing, Terms(), divisor=13.0).loss
    assert loss.item() == 0.0
    assert not any(one.any() for one in gradients(loss, c))


def test_diagnostics_are_the_sums_of_the_plain_numbers() -> None:
    c = case(40, everything=True)
    tokens, terms = c.tokens, Terms(kl_coef=0.1)
    assert tokens.keep is not None and tokens.ref_log_probs is not None
    found = diagnostics(fused_policy_loss(c.hidden, c.weight, tokens, terms, divisor=1.0), tokens)
    new, entropy = (one.detach() for one in plain_log_probs(c.hidden, c.weight, tokens.targets, 1.0))
    delta, up = new - tokens.old_log_probs, tokens.advantages > 0
    expected = {
        "tokens": 40, "selected": tokens.keep.sum(), "entropy_selected": entropy[tokens.keep].sum(),
        "clipped_low": ((delta.exp() < 0.8) & ~up & tokens.keep).sum(),
        "clipped_high": ((delta.exp() > 1.2) & up & tokens.keep).sum(), "entropy": entropy.sum(),
        "mismatch": delta.abs().sum(), "mismatch_kl": (delta.exp() - delta - 1).sum(),
        "kl": ((tokens.ref_log_probs - new).exp() - (tokens.ref_log_probs - new) - 1).sum(),
        "ratio": delta.exp().sum(), "tis_weight": 0, "tis_cut": 0,
        "mismatch_max": delta.abs().max(), "ratio_max": delta.exp().max(),
    }  # fmt: skip
    assert found._asdict() == pytest.approx({name: float(value) for name, value in expected.items()})
    assert found.clipped_low > 0 and found.clipped_high > 0


def test_diagnostics_of_no_token_are_zero() -> None:
    c = case(0)
    found = fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(), divisor=1.0)
    assert found.loss.item() == 0 and set(diagnostics(found, c.tokens)) == {0.0}


def test_a_kl_without_reference_is_refused() -> None:
    c = case()
    with pytest.raises(ValueError, match=r"kl_coef = 0.1, or kl_weights, needs ref_log_probs"):
        fused_policy_loss(c.hidden, c.weight, c.tokens, Terms(kl_coef=0.1), divisor=1.0)
