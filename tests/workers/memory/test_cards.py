"""Which of the host's cards belongs to a process."""

from __future__ import annotations

import os

import pytest

from workers.environment import set_environment
from workers.memory.cards import card_of


@pytest.mark.parametrize(
    ("visible", "rank", "card"),
    [(None, 0, "0"), (None, 1, "1"), ("2,5", 0, "2"), ("2,5", 1, "5"), ("GPU-a, GPU-b", 1, "GPU-b"), ("3", 1, ""),
     ("", 0, "")],
)  # fmt: skip
def test_a_rank_has_the_card_that_the_environment_gives_it(visible: str | None, rank: int, card: str) -> None:
    assert card_of(rank, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == card


@pytest.mark.parametrize(
    ("said", "order"), [({}, "PCI_BUS_ID"), ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST")]
)
def test_a_worker_counts_cards_as_the_driver_does_unless_the_user_says_otherwise(
    said: dict[str, str], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", said.copy())
    set_environment()
    assert os.environ["CUDA_DEVICE_ORDER"] == order
