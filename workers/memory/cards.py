"""Which of the host's GPUs this process may use, by the driver's names."""

from __future__ import annotations

from collections.abc import Mapping


def card_of(rank: int, environment: Mapping[str, str]) -> str:
    """Index or UUID of the GPU that this process sees as number `rank`; empty if there is none. (pure)

    CUDA_VISIBLE_DEVICES names some of the host's GPUs, in any order. An index also holds for the driver, because
    workers number GPUs by PCI bus; if the user has set another CUDA_DEVICE_ORDER, it holds for CUDA only.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return str(rank)
    cards = [card.strip() for card in chosen.split(",") if card.strip()]
    return cards[rank] if rank < len(cards) else ""
