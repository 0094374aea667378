"""`python -m benchmarks cycles`: a table of what time went into."""

from __future__ import annotations

from benchmarks.cycles import handover_of, starts_table, table
from state.cycle_times import start_of, time_of

METRICS: dict[str, float | None] = {"seconds/rollout": 40.0, "seconds/update": 20.0, "seconds/judge": 5.0}
FIRST = time_of(1, (0.0, 100.0), [(82.0, 72.0, METRICS)], (85.0, 97.0))
SECOND = time_of(2, (100.0, 200.0), [(182.0, 78.0, METRICS)], (183.0, 199.0))


def test_a_hand_over_is_from_the_last_step_to_the_next_first_one_without_validation() -> None:
    assert handover_of(FIRST, SECOND) == 3.0 + 3.0 + 4.0


def test_the_table_tells_shares_and_the_hand_over() -> None:
    text = table([FIRST, SECOND])
    assert "rollouts and updates: 60.0% of the time of 2 cycles" in text
    assert text.endswith("hand-over: median 10.00 s, longest 10.00 s")


def test_the_table_of_starts_leaves_out_those_that_find_empty_caches() -> None:
    starts = [
        start_of(cycle, role, 0.0, {"started": (0.5, {}), "path": (10.5 - cycle, {"compare_s": 1.0})})
        for cycle in (0, 1, 2, 3)
        for role in ("train", "validate")
    ]
    _, train, validate = starts_table(starts).splitlines()
    assert train.split() == ["train", "0.50", "7.00", "1.00", "0.00"]
    assert validate.split()[1:] == train.split()[1:]
