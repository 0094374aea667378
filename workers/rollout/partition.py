"""How the requests of a step are divided among ranks. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from workers.rollout.engine import Request


def partition_requests(requests: Sequence[Request], size: int, max_new_tokens: int) -> list[list[int]]:
    """Each rank's request numbers, in order. Equal prompts stay together, because an engine reads them once.

    The longest work is assigned first, each piece to the least loaded rank. A prompt with more rollouts than a rank's
    even share is divided; otherwise one rank would work while all others wait.
    """
    most = max(1, -(-len(requests) // size))
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.prompt_ids, []).append(number)
    lots = [group[at : at + most] for group in groups.values() for at in range(0, len(group), most)]
    costs = [len(requests[lot[0]].prompt_ids) + len(lot) * max_new_tokens for lot in lots]
    shares: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for which in sorted(range(len(lots)), key=lambda one: (-costs[one], one)):
        rank = loads.index(min(loads))
        shares[rank] += lots[which]
        loads[rank] += costs[which]
    return [sorted(share) for share in shares]
