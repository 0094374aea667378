"""What pause, validate and cycles decide: which step, how many cycles, and what is refused."""

from __future__ import annotations

import pytest

from orchestrator.steering import (
    Refused,
    changed_cycles,
    cycle_facts,
    cycles_text,
    gives_way,
    keeps_worker,
    step_to_validate,
    with_cycles,
)
from profiles.schema import Run
from tests.builders import a_history, a_profile


@pytest.mark.parametrize(
    ("change", "now", "cycle", "expected"),
    [
        ("+2", 10, 3, 12),
        ("-1", 10, 3, 9),
        ("40", 10, 3, 40),
        (" 40 ", 0, 3, 40),
        ("none", 10, 3, 0),
        ("0", 10, 3, 0),
        pytest.param("-9", 10, 3, 3, id="the cycle under way is finished"),
        pytest.param("1", 10, 3, 3, id="so no number below it counts"),
        pytest.param("-9", 3, 0, 1, id="a run has a cycle at least: 0 would mean no limit"),
    ],
)
def test_cycles_change_by_a_sum_or_a_number(change: str, now: int, cycle: int, expected: int) -> None:
    assert changed_cycles(change, now, cycle) == expected


@pytest.mark.parametrize(
    "change", ["", "+", "two", "+2.5", "--2", "1e3", "\x1b[2J", "\u0663", "99999999999", "+999999999"]
)
def test_what_is_no_number_of_cycles_is_refused(change: str) -> None:
    with pytest.raises(Refused):
        changed_cycles(change, 10, 3)


def test_a_run_without_a_limit_has_nothing_to_add_to() -> None:
    with pytest.raises(Refused, match="no limit"):
        changed_cycles("+1", 0, 3)


def test_the_answer_counts_the_cycles_after_this_one() -> None:
    profile = a_profile(run=Run(max_cycles=5))
    assert cycle_facts(profile, a_history()) == {"max_cycles": 5, "cycle": 3, "left": 2}
    assert cycles_text(cycle_facts(profile, a_history())) == "cycle 3 of 5: 2 more after it"
    assert cycles_text(cycle_facts(with_cycles(profile, 3), a_history())) == "cycle 3 of 3: none more after it"
    assert cycles_text(cycle_facts(with_cycles(profile, 0), a_history())) == "cycle 3, without a limit of cycles"


@pytest.mark.parametrize(
    ("worker_step", "is_scored", "expected"),
    [
        pytest.param(53, False, 53, id="the step in progress"),
        pytest.param(53, True, 53, id="whatever was scored before"),
        pytest.param(50, False, 50, id="a worker that loads the head gives way for it"),
        pytest.param(50, True, 51, id="unless it is scored: then after its first step"),
        pytest.param(None, False, 50, id="without a worker the head"),
    ],
)
def test_which_step_is_validated(worker_step: int | None, is_scored: bool, expected: int) -> None:
    assert step_to_validate(a_history(is_head_validated=is_scored), worker_step) == expected


def test_a_scored_head_is_not_scored_again() -> None:
    with pytest.raises(Refused, match="step 50, is validated already"):
        step_to_validate(a_history(is_head_validated=True), None)


def test_the_first_checkpoint_of_a_run_is_good_enough() -> None:
    assert step_to_validate(a_history(head=None), 0) == 0


def test_a_worker_gives_way_from_the_step_on_that_was_asked_for() -> None:
    asked = a_history(validation_asked=53)
    assert [gives_way(asked, step) for step in (52, 53, 54)] == [False, True, True]
    assert not gives_way(a_history(), 53)
    assert not gives_way(a_history(head=None, validation_asked=0), 0), "seeding has nothing to score yet"


def test_only_workers_of_ours_on_one_gpu_wait_in_a_pause() -> None:
    assert keeps_worker(a_profile())
    assert not keeps_worker(a_profile(run=Run(gpus=2)))
    assert not keeps_worker(a_profile(run=Run(worker="open_instruct")))
