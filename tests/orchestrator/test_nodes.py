"""Which nodes are slow, which are left out, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from orchestrator.nodes import (
    FORGIVEN_S,
    SLOW_FACTOR,
    SLOW_STEPS,
    Avoid,
    NodeSteps,
    Shares,
    as_lines,
    avoided,
    slow_nodes,
    slow_reason,
)
from profiles.metrics import of_node
from state import event_kinds
from state.facts import Line
from state.history import NodeFailure


def failure(node: str, at: float, reason: str = "") -> NodeFailure:
    return NodeFailure(node, reason or f"lost {node}", 3, 1, at)


SLOW = slow_reason(1.8)


def test_a_node_is_left_out_for_a_week_and_then_forgiven() -> None:
    for reason, found in (("", Avoid(failed=("n1",))), (SLOW, Avoid(slow=("n1",)))):
        assert avoided([failure("n1", 0.0, reason)], FORGIVEN_S - 1) == found
        assert avoided([failure("n1", 0.0, reason)], FORGIVEN_S + 1) == Avoid()


def test_the_newest_failure_comes_first_and_each_node_once() -> None:
    failures = [failure("n1", 0.0), failure("n2", 5.0), failure("n1", 9.0)]
    assert avoided(failures, 10.0) == Avoid(failed=("n1", "n2"))


def test_a_node_that_failed_and_was_slow_counts_as_failed() -> None:
    assert avoided([failure("n1", 0.0), failure("n1", 5.0, SLOW), failure("n2", 6.0, SLOW)], 9.0) == Avoid(
        failed=("n1",), slow=("n2",)
    )


def test_a_person_is_told_which_why_and_until_when() -> None:
    lost, slow = as_lines([failure("n2", 0.0, SLOW), failure("n1", 0.0)], 3600.0)
    assert lost.startswith("n1: lost n1 (cycle 3, ")
    assert slow.startswith("n2: slow: 1.8 times the median of its peers over 20 steps (cycle 3, ")


# --- slow nodes -------------------------------------------------------------------------------------------------------


def steps_of(**seconds: float) -> list[Shares]:
    return [{node: {"seconds": own, "decoded": 100.0} for node, own in seconds.items()}] * SLOW_STEPS


def test_a_node_that_is_slow_at_every_step_is_found_with_how_slow_it_is() -> None:
    assert slow_nodes(steps_of(n1=1.0, n2=1.8, n3=1.0)) == {"n2": pytest.approx(1.8)}
    assert slow_nodes(steps_of(n1=1.0, n2=SLOW_FACTOR, n3=1.0)) == {}


def test_a_node_that_was_not_slow_at_one_of_the_steps_is_not() -> None:
    steps = steps_of(n1=1.0, n2=9.0, n3=1.0)
    assert slow_nodes([*steps[1:], *steps_of(n1=1.0, n2=1.4, n3=1.0)[:1]]) == {}


def test_fewer_steps_of_the_same_nodes_say_nothing() -> None:
    steps = steps_of(n1=1.0, n2=9.0, n3=1.0)
    assert slow_nodes(steps[1:]) == {}
    assert slow_nodes([*steps_of(n1=1.0, n2=9.0, n4=1.0)[:1], *steps[1:]]) == {}


def test_of_two_nodes_nobody_says_which_is_slow() -> None:
    assert slow_nodes(steps_of(n1=1.0, n2=9.0)) == {}


def test_one_fast_node_does_not_make_the_others_slow() -> None:
    assert slow_nodes(steps_of(n1=1.0, n2=9.0, n3=9.0, n4=9.0)) == {}


@pytest.mark.parametrize("kind", ["read", "decoded", "longest", "trained"])
def test_a_node_with_more_work_is_not_slow(kind: str) -> None:
    """Twice the prompts, or twice the completions: a partition gives the odd one always to the same rank."""
    steps = [
        {node: {"seconds": 2.0 * more, "decoded": 100.0, kind: 50.0 * more} for node, more in
         (("n1", 2), ("n2", 1), ("n3", 1))}
    ] * SLOW_STEPS  # fmt: skip
    assert slow_nodes(steps) == {}


def test_the_last_steps_are_kept_and_steps_without_nodes_are_passed_over() -> None:
    metrics = {of_node(node, "seconds"): 2.0 if node == "n2" else 1.0 for node in ("n1", "n2", "n3")}
    kept = NodeSteps([metrics] * (SLOW_STEPS - 1) + [{"seconds": 3.0}])
    assert kept.slow == {}
    kept.take([Line(1, event_kinds.CHECKPOINT.name, 1, 0.0, 0.0, {}, ""), line({"seconds": 3.0})])
    assert kept.slow == {}
    kept.take([line(metrics)])
    assert kept.slow == {"n2": pytest.approx(2.0)}
    kept.take([line({**metrics, of_node("n2", "seconds"): 1.0})])
    assert kept.slow == {}


def line(metrics: Mapping[str, float]) -> Line:
    return Line(1, event_kinds.STEP.name, 1, 0.0, 0.0, dict(metrics), "")


@dataclass(frozen=True)
class World:
    """Ranks that draw completions of random lengths. Their costs are the same on every node, but for `slow`."""

    nodes: int = 3
    noise: float = 0.1
    """Deviation of the logarithm of a node's speed, drawn anew at each step."""
    busy: int = 0
    """Of each 40 steps so many are run beside another job on one of the nodes, which then takes three times as long."""
    spread: float = 0.5
    """Deviation of the logarithm of a completion's length."""
    growth: float = 1.0
    """Of all lengths, from the first step to the last."""
    prompts: tuple[int, ...] = (4,)
    """Prompts of each node, the last one also that of all further nodes."""
    long_first: float = 1.0
    """How much longer the prompts and completions of the first node are: the longest prompts are dealt first."""
    pass_s: float = 0.02
    token_s: float = 0.0005
    slow: float = 1.0
    """The last node takes so many times as long."""

    def steps(self, count: int, seed: int) -> Iterator[Shares]:
        draw = random.Random(seed)
        guest = 0
        for step in range(count):
            if step % 40 == 0:
                guest = draw.randrange(self.nodes)
            scale = 200 * self.growth ** (step / count)
            shares = {}
            for node in range(self.nodes):
                longer = self.long_first if node == 0 else 1.0
                prompts = self.prompts[min(node, len(self.prompts) - 1)]
                lengths = [scale * longer * draw.lognormvariate(0, self.spread) for _ in range(4 * prompts)]
                read, decoded, longest = prompts * 100 * longer, sum(lengths), max(lengths)
                own = self.pass_s * longest + self.token_s * (4 * decoded + read)
                own *= draw.lognormvariate(0, self.noise) * (self.slow if node == self.nodes - 1 else 1.0)
                own *= 3.0 if node == guest and step % 40 < self.busy else 1.0
                shares[f"n{node}"] = {"seconds": own, "read": read, "decoded": decoded, "longest": longest,
                                      "trained": read + decoded}  # fmt: skip
            yield shares

    def named(self, count: int, seed: int) -> set[str]:
        """All nodes that are ever called slow."""
        kept: list[Shares] = []
        found: set[str] = set()
        for step in self.steps(count, seed):
            kept = [*kept[1 - SLOW_STEPS :], step]
            found |= slow_nodes(kept).keys()
        return found


HEALTHY = {
    "even": World(),
    "noisy": World(noise=0.5),
    "for a while": World(busy=SLOW_STEPS - 1, noise=0.0, spread=0.1),
    "long tails": World(spread=1.5),
    "rising": World(growth=8.0),
    "falling": World(growth=0.1),
    "three on one": World(prompts=(12, 4)),
    "an odd prompt": World(prompts=(2, 1), nodes=4, noise=0.2),
    "the longest first": World(long_first=3.0),
    "decoding pays by the pass": World(token_s=0.0, long_first=2.5),
    "decoding pays by the token": World(pass_s=0.0, prompts=(9, 3), spread=1.0),
    "many nodes": World(nodes=16, noise=0.3),
}


@pytest.mark.parametrize("world", HEALTHY.values(), ids=HEALTHY)
def test_no_healthy_node_is_called_slow(world: World) -> None:
    """400 steps of each of 5 seeds."""
    assert [world.named(400, seed) for seed in range(5)] == [set()] * 5


SLOWED = {
    "a little": (World(slow=2.0, spread=0.2, noise=0.05), 100),
    "by much": (World(slow=4.0), 60),
    "by much, and noisy": (World(slow=6.0, noise=0.3), 200),
    "with less work": (World(slow=6.0, prompts=(6, 4, 3)), 200),
    "one of many": (World(slow=3.0, nodes=16), 100),
}


@pytest.mark.parametrize(("world", "within"), SLOWED.values(), ids=SLOWED)
def test_a_slow_node_is_found_and_only_that_one(world: World, within: int) -> None:
    assert [world.named(within, seed) for seed in range(5)] == [{f"n{world.nodes - 1}"}] * 5
