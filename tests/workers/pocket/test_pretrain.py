"""When pretraining ends."""

from __future__ import annotations

import pytest

from workers.pocket.pretrain import DECAY_FROM, end_after_gate, learning_rate_factor


def test_once_the_gate_holds_only_the_decay_is_left() -> None:
    end = end_after_gate(1.0, 0.3, holds=True)
    assert end == pytest.approx(0.5)
    assert learning_rate_factor(10_000, 0.3 / end) == pytest.approx(1.0)
    assert learning_rate_factor(10_000, end / end) == 0.0


def test_a_gate_that_holds_again_moves_nothing() -> None:
    assert end_after_gate(0.5, 0.4, holds=True) == 0.5


def test_a_gate_that_fails_moves_nothing() -> None:
    assert end_after_gate(1.0, 0.3, holds=False) == 1.0


def test_within_the_decay_the_gate_moves_nothing() -> None:
    assert end_after_gate(1.0, DECAY_FROM + 0.1, holds=True) == 1.0
