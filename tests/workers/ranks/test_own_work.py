"""What a rank times of its own computing, and what the nodes of all ranks make of it."""

from __future__ import annotations

from itertools import count

from workers.ranks.own_work import OwnWork, Stopwatch, node_metrics


def test_only_the_time_inside_counts_and_is_given_out_once() -> None:
    clock = map(float, count(10))
    watch = Stopwatch(lambda: next(clock))
    with watch.computing():
        pass
    next(clock)  # the rank waits for others
    with watch.computing():
        watch.add(decoded=7)
    watch.add(longest=3)
    assert watch.take("n1") == OwnWork("n1", seconds=2.0, decoded=7, longest=3)
    assert watch.take("n1") == OwnWork("n1")


def test_a_node_is_as_slow_as_its_slowest_rank() -> None:
    ranks = [OwnWork("n1", 1.0), OwnWork("n1", 3.0, decoded=5), OwnWork("n2", 2.0, read=1), OwnWork("n2", 1.5)]
    figures = {"read": 0.0, "decoded": 0.0, "longest": 0.0, "trained": 0.0}
    expected = {"n1": {**figures, "seconds": 3.0, "decoded": 5.0}, "n2": {**figures, "seconds": 2.0, "read": 1.0}}
    assert node_metrics(ranks) == {
        f"node/{node}/{name}": value for node, each in expected.items() for name, value in each.items()
    }


def test_nothing_is_said_of_nodes_without_a_name_or_a_time() -> None:
    assert node_metrics([OwnWork("n1", 1.0), OwnWork("", 1.0)]) == {}
    assert node_metrics([OwnWork("n1", 1.0), OwnWork("n2", 0.0)]) == {}
