"""The policy loss on numbers worked by hand, its gradient's sign, and a reference in double precision."""

from __future__ import annotations

import math

import pytest
import torch

from workers.loss.policy import clipped_token_loss, k3, token_entropy


def loss_of(ratio: float, advantage: float) -> tuple[float, float, bool]:
    """(loss, gradient with respect to log_probs, clipped) of one token."""
    log_probs = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    losses, is_clipped = clipped_token_loss(
        log_probs, torch.zeros(1, dtype=torch.float64), advantages, clip_ratio_low=0.2, clip_ratio_high=0.2
    )
    losses.sum().backward()
    assert log_probs.grad is not None
    return losses.item(), log_probs.grad.item(), bool(is_clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(1.3, 1, -1.2, 0.0), (0.7, -1, 0.8, 0.0), (1.5, -1, 1.5, 1.5), (0.7, 1, -0.7, -0.7), (1.0, 2, -2, -2)],
)
def test_a8_clipped_token_losses_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    found = loss_of(ratio, advantage)
    assert found[:2] == pytest.approx((loss, gradient))
    assert found[2] is (gradient == 0.0)


@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_ratio_beyond_all_bounds_is_a_finite_loss_without_gradient(log_ratio: float, advantage: float) -> None:
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    losses, _ = clipped_token_loss(
        log_probs, torch.zeros(1), torch.tensor([advantage]), clip_ratio_low=0.2, clip_ratio_high=0.2
    )
    losses.sum().backward()
    assert bool(losses.isfinite()) and log_probs.grad is not None and log_probs.grad.tolist() == [0.0]


def test_a_better_rollout_gets_more_likely() -> None:
    logits = torch.zeros(2, 5, requires_grad=True)
    chosen = torch.tensor([1, 3])
    log_probs = torch.log_softmax(logits, -1).gather(1, chosen[:, None]).squeeze(1)
    losses, _ = clipped_token_loss(
        log_probs, log_probs.detach(), torch.tensor([1.0, -1.0]), clip_ratio_low=0.2, clip_ratio_high=0.2
    )
    losses.sum().backward()
    assert logits.grad is not None
    after = torch.log_softmax(logits - 0.1 * logits.grad, -1).gather(1, chosen[:, None]).squeeze(1)
    assert after[0] > log_probs[0] and after[1] < log_probs[1]


def test_single_precision_agrees_with_a_double_precision_reference() -> None:
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(500, generator=generator) * 4
    new = old + 0.4 * torch.randn(500, generator=generator)
    advantages = torch.randn(500, generator=generator)
    losses, _ = clipped_token_loss(new, old, advantages, clip_ratio_low=0.2, clip_ratio_high=0.28)
    expected = []
    for n, o, a in zip(new.double().tolist(), old.double().tolist(), advantages.double().tolist(), strict=True):
        ratio = math.exp(n - o)
        expected.append(max(-a * ratio, -a * min(max(ratio, 0.8), 1.28)))
    torch.testing.assert_close(losses.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_entropy_of_a_fair_choice_is_the_logarithm_of_its_size() -> None:
    assert token_entropy(torch.zeros(1, 8)).item() == pytest.approx(math.log(8))


def test_k3_is_zero_for_equals_and_positive_otherwise() -> None:
    same = torch.tensor([-1.0, -2.0])
    assert k3(same, same).tolist() == [0.0, 0.0]
    assert bool((k3(same, same + torch.tensor([0.3, -0.3])) > 0).all())
