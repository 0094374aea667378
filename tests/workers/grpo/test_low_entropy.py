"""The KL on tokens that the entropy mask drops."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.grpo.low_entropy import kl_weights

KEEP = torch.tensor([True, False, False, False, False, True])
LOG_PROBS = torch.tensor([-9.0, -1.0, -1.0, -3.0, -1.0, -9.0])
ADVANTAGES = torch.tensor([5.0, 1.0, -1.0, -1.0, 1.0, 5.0])


def test_dropped_tokens_have_the_weight_and_kept_ones_none() -> None:
    assert kl_weights(KEEP, LOG_PROBS, ADVANTAGES, low=0.5).tolist() == [0, 0.5, 0.5, 0.5, 0.5, 0]


def test_the_share_that_strays_most_is_held_more_firmly() -> None:
    # of the dropped: mean log_prob -1.5, mean advantage 0: products .5, .5, 1.5, .5
    assert kl_weights(KEEP, LOG_PROBS, ADVANTAGES, low=0.5, high=2.0, share=0.25).tolist() == [0, 0.5, 0.5, 2, 0.5, 0]


def test_of_equal_ones_the_earlier_is_held() -> None:
    assert kl_weights(KEEP, LOG_PROBS, ADVANTAGES, low=0.5, high=2.0, share=0.5).tolist() == [0, 2, 0.5, 2, 0.5, 0]


def test_kept_tokens_do_not_move_the_means() -> None:
    others = torch.where(KEEP, 100.0, LOG_PROBS), torch.where(KEEP, -100.0, ADVANTAGES)
    for share in (0.25, 0.5, 1.0):
        expected = kl_weights(KEEP, LOG_PROBS, ADVANTAGES, low=0.5, high=2.0, share=share)
        assert torch.equal(kl_weights(KEEP, *others, low=0.5, high=2.0, share=share), expected)


def test_a_share_is_a_decimal_number() -> None:
    values = torch.arange(100.0)
    held = kl_weights(torch.zeros(100, dtype=torch.bool), values, values, low=0.5, high=2.0, share=0.29)
    assert int((held == 2.0).sum()) == 29


@given(st.lists(st.tuples(st.booleans(), st.floats(-9, 0), st.floats(-3, 3))), st.floats(0, 1))
def test_each_token_has_one_of_three_weights_and_the_share_is_kept(
    tokens: list[tuple[bool, float, float]], share: float
) -> None:
    keep = torch.tensor([one[0] for one in tokens], dtype=torch.bool)
    log_probs, advantages = (torch.tensor([one[at] for one in tokens]) for at in (1, 2))
    found = kl_weights(keep, log_probs, advantages, low=0.25, high=0.75, share=share)
    dropped = int((~keep).sum())
    asked = Fraction(str(share)) * dropped
    assert asked - 1 < int((found == 0.75).sum()) <= asked
    assert int((found == 0.25).sum()) == dropped - int((found == 0.75).sum())
    assert not found[keep].any()
