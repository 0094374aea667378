"""Which cards of the host this process may use, as the driver names them."""

from __future__ import annotations

from collections.abc import Mapping


def card_of(rank: int, environment: Mapping[str, str]) -> str:
    """Index or uuid of the card that is number `rank` to this process; empty where there is none. (pure)

    CUDA_VISIBLE_DEVICES names some of the host's cards, in an order of its own. An index is the driver's too, as
    workers count by PCI bus; where the user has set another CUDA_DEVICE_ORDER, it is CUDA's alone.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return str(rank)
    cards = [card.strip() for card in chosen.split(",") if card.strip()]
    return cards[rank] if rank < len(cards) else ""
