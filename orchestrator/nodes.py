"""Decides which nodes of a cluster are slow, and which to avoid for a while because they failed or were slow. (pure)"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.display.wording import duration
from profiles.metrics import NODE_SECONDS, by_node
from state import event_kinds
from state.facts import Line
from state.history import NodeFailure

FORGIVEN_S = 7 * 24 * 3600.0
SLOW_STEPS = 20
SLOW_FACTOR = 1.5
FEWEST_TO_COMPARE = 3
"""Of two nodes nobody can say which is the unusual one: perhaps the other is fast."""
SLOW = "slow:"
"""How the reason of a slow node begins."""
SECONDS = NODE_SECONDS.name.removeprefix(f"{NODE_SECONDS.family}/")

Shares = Mapping[str, Mapping[str, float]]
"""Of one step: node -> figure -> value, `seconds` of its own computing among them. The other figures count its work."""


@dataclass(frozen=True)
class Avoid:
    """Nodes that jobs must avoid, the newest first. slow: as far as enough others are left."""

    failed: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()


NOBODY = Avoid()


def avoided(failures: Sequence[NodeFailure], now: float) -> Avoid:
    """now: UTC seconds of this host's clock. A node that both failed and was slow counts as failed."""
    newest = sorted((one for one in failures if now - one.at < FORGIVEN_S), key=lambda one: -one.at)
    failed = dict.fromkeys(one.node for one in newest if not one.reason.startswith(SLOW))
    slow = dict.fromkeys(one.node for one in newest if one.node not in failed)
    return Avoid(tuple(failed), tuple(slow))


def as_lines(failures: Sequence[NodeFailure], now: float) -> list[str]:
    """Describe to the user which nodes are avoided, why, since when and until when."""
    found = []
    avoid = avoided(failures, now)
    for node in (*avoid.failed, *avoid.slow):
        one = max((failure for failure in failures if failure.node == node), key=lambda failure: failure.at)
        ago, left = duration(max(0.0, now - one.at)), duration(max(0.0, one.at + FORGIVEN_S - now))
        found.append(f"{node}: {one.reason} (cycle {one.cycle}, {ago} ago; used again in {left})")
    return found


def slow_nodes(steps: Sequence[Shares]) -> dict[str, float]:
    """Slow node -> how many times as long as its peers it took, over the last SLOW_STEPS of these steps.

    A node is slow if it took more than SLOW_FACTOR times the median of all nodes in each of these steps, and if its
    larger share of the work does not explain that. Empty while there are fewer steps of the same nodes.
    """
    last = steps[-SLOW_STEPS:]
    if len(last) < SLOW_STEPS or len(last[0]) < FEWEST_TO_COMPARE or any(one.keys() != last[0].keys() for one in last):
        return {}
    usual = [median(share[SECONDS] for share in step.values()) for step in last]
    always = [
        node
        for node in last[0]
        if all(step[node][SECONDS] > SLOW_FACTOR * of_all for step, of_all in zip(last, usual, strict=True))
    ]
    excess = {node: _excess(node, last) for node in always}
    return {node: times for node, times in excess.items() if times > SLOW_FACTOR}


def _excess(node: str, steps: Sequence[Shares]) -> float:
    """How many times as long a node took as the middle one of all nodes, each given this node's work.

    A node whose time is a sum of costs, each in proportion to one kind of work, cannot take longer than another one
    by more than the largest ratio between their shares of a kind. So that ratio is granted.
    """
    sums = {one: _sums(step[one] for step in steps) for one in steps[0]}
    own = sums[node]
    times = []
    for other in sums.values():
        kinds = [own[kind] / other[kind] for kind in own if kind != SECONDS and other.get(kind)]
        times.append(own[SECONDS] / (other[SECONDS] * max([1.0, *kinds])))
    return median(times)


def _sums(shares: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in shares:
        for figure, value in share.items():
            found[figure] = found.get(figure, 0.0) + value
    return found


def slow_reason(times: float) -> str:
    return f"{SLOW} {times:.1f} times the median of its peers over {SLOW_STEPS} steps"


class NodeSteps:
    """The shares of all nodes in the last steps. Steps without any do not count."""

    def __init__(self, metrics: Iterable[Mapping[str, float]] = ()) -> None:
        """metrics: of steps, oldest first."""
        self._shares: deque[Shares] = deque(filter(None, map(by_node, metrics)), maxlen=SLOW_STEPS)

    def take(self, lines: Sequence[Line]) -> None:
        """Add the steps among newly ingested lines."""
        steps = (by_node(line.data) for line in lines if line.type == event_kinds.STEP.name)
        self._shares.extend(filter(None, steps))

    @property
    def slow(self) -> dict[str, float]:
        return slow_nodes(tuple(self._shares))
