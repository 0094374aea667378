"""The simulated guarantees of the stagnation rule with few seeds; `python -m benchmarks stagnation` uses many."""

from __future__ import annotations

import pytest

from benchmarks.stagnation import LINES, SETTINGS, is_wrong, play

SEEDS = 12
LINE = {line.name: line for line in LINES}
HELD = {held.name: held for held in SETTINGS}


@pytest.mark.parametrize("held", ["azr 2 x 800", "pocket 3 x 300"])
@pytest.mark.parametrize(
    "name",
    [
        "healthy: .40 to .48 in 60 cycles",
        "healthy: flat for 12, then +.20 in 28",
        "plateau at .45",
        "collapse: .45 to .25 at cycle 20",
        "poor data (15 % new, 30 % of them learnable), +.01 a cycle",
    ],
)
def test_the_rule_errs_in_no_more_runs_than_promised(name: str, held: str) -> None:
    """Where it errs in 2 % of runs, two errors among 12 come once in 40 times, and where it errs in 5 %, three once in
    50; the seeds are fixed."""
    wrong = [seed for seed in range(SEEDS) if is_wrong(LINE[name], play(LINE[name], HELD[held], seed))]
    assert len(wrong) <= (2 if LINE[name].wants == "stop" else 1)


@pytest.mark.parametrize("name", ["the same, flat", "dry (2 % new), flat"])
def test_a_dry_run_is_reseeded_twice_and_then_stopped(name: str) -> None:
    ended = play(LINE[name], HELD["azr 2 x 200"], 0)
    assert (ended.kind, ended.reseeds) == ("no_data", 2)
