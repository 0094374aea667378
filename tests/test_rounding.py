"""The bounds hold for sums in any order, and are near what can be reached."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rounding import adamw_bound, bound, gamma


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=200), st.randoms(use_true_random=False))
def test_a_sum_in_another_order_is_within_the_bound(values: list[float], order: object) -> None:
    def total(numbers: list[float]) -> torch.Tensor:
        found = torch.zeros(())
        for one in numbers:
            found = found + one
        return found

    shuffled = list(values)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    apart = abs(float(total(values)) - float(total(shuffled)))
    assert apart <= bound(len(values), sum(map(abs, values)))


def test_the_bound_is_no_wider_than_a_thousand_times_what_happens() -> None:
    values = torch.full((4096,), 0.1)
    found = torch.zeros(())
    for one in values:
        found = found + one
    apart = abs(float(found) - 409.6)
    assert bound(4096, 409.6) / 1000 < apart <= bound(4096, 409.6)


def test_half_precision_has_no_digit_left_after_enough_additions() -> None:
    assert gamma(100, torch.bfloat16) < 1
    with pytest.raises(ValueError, match="256 roundings"):
        gamma(256, torch.bfloat16)


def test_steps_of_adamw_differ_within_the_bound() -> None:
    draws = torch.Generator().manual_seed(0)
    sizes = 10 ** (torch.rand(2, 20_000, generator=draws, dtype=torch.float64) * 9 - 12)  # 1e-12 to 1e-3, around eps
    gradients, apart = sizes * torch.randn(2, 20_000, generator=draws, dtype=torch.float64).sign()

    def step(gradient: torch.Tensor) -> torch.Tensor:
        weights = torch.zeros_like(gradient, requires_grad=True)
        weights.grad = gradient
        torch.optim.AdamW([weights], lr=1e-2, eps=1e-8).step()
        return weights.detach()

    found = (step(gradients) - step(gradients + apart)).abs()
    assert bool((found <= adamw_bound(gradients, apart.abs(), 1e-2, 1e-8) * (1 + 1e-9) + 1e-16).all())
    assert float(found.max()) > 1e-2  # some were turned around
