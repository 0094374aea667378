"""When a run counts as stagnant, as a table."""

from __future__ import annotations

import pytest

from orchestrator.stagnation import GO, verdict
from profiles.schema import Stagnation
from state.history import CycleFacts, History, ValidationFacts
from state.states import CycleState, RunState

RULE = Stagnation(patience_cycles=3, min_cycles=2, poor_cycles=2, min_new_share=0.05, on_plateau="stop")


def cycle(
    number: int, greedy: float, sampled: float = 0.2, new: int = 30, learnable: int = 20, **more: object
) -> CycleFacts:
    metrics = {"mean": {"accuracy": greedy, "sampled_accuracy": sampled, "n": 900}}
    score = ValidationFacts(number, number * 20, "pocket", greedy, int(greedy * 900), 900, metrics)
    return CycleFacts(
        number, "train" if number else "seed", CycleState.VALIDATED, number * 20 - 19, number * 20 + 1,
        proposals=100, new_examples=new, learnable=learnable, validations=(score,), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def history(*cycles: CycleFacts, reseeds: int = 0) -> History:
    return History("run", "test", RunState.RUNNING, current=cycles[-1], recent=cycles[:-1], reseeds=reseeds)


def flat(count: int, greedy: float = 0.5, sampled: float = 0.4) -> tuple[CycleFacts, ...]:
    return tuple(cycle(n, greedy, sampled) for n in range(count))


def test_rising_accuracy_goes_on() -> None:
    assert verdict(history(*(cycle(n, 0.3 + 0.05 * n) for n in range(8))), RULE) == GO


def test_O5_a_healthy_day_of_constant_counts_is_not_stagnant() -> None:
    """The published rule counted rows of files of a constant length, and stopped every run."""
    day = tuple(cycle(n, 0.3 + 0.001 * n, 0.2 + 0.002 * n, new=30, learnable=20) for n in range(288))
    assert all(verdict(history(*day[:n]), Stagnation()) == GO for n in range(1, len(day) + 1))


def test_flat_accuracy_is_a_plateau_and_the_evidence_names_both_scores() -> None:
    found = verdict(history(*flat(6)), RULE)
    assert (found.kind, found.action) == ("plateau", "stop")
    assert "accuracy best 0.500, before 0.500" in found.evidence
    assert "sampled accuracy best 0.400" in found.evidence


def test_flat_greedy_with_rising_sampled_accuracy_is_no_plateau() -> None:
    """Greedy accuracy is a step function: the policy moves long before it does."""
    assert verdict(history(*(cycle(n, 0.31, 0.2 + 0.03 * n) for n in range(8))), RULE) == GO


def test_a_rise_within_one_standard_error_is_noise() -> None:
    found = verdict(history(*(cycle(n, 0.5 + 0.002 * n, 0.4) for n in range(6))), RULE)
    assert found.kind == "plateau"


def test_a_young_run_is_not_judged() -> None:
    assert verdict(history(*flat(2)), RULE) == GO


def test_a_plateau_needs_the_whole_patience() -> None:
    assert verdict(history(*flat(3)), RULE) == GO


@pytest.mark.parametrize("poor", [{"new": 2}, {"learnable": 1}])
def test_poor_cycles_in_a_row_mean_no_data(poor: dict[str, int]) -> None:
    cycles = [cycle(n, 0.3 + 0.05 * n) for n in range(4)] + [cycle(n, 0.5 + 0.05 * n, **poor) for n in (4, 5)]  # type: ignore[arg-type]
    found = verdict(history(*cycles), RULE)
    assert (found.kind, found.action) == ("no_data", "reseed")


def test_one_poor_cycle_is_no_verdict() -> None:
    cycles = [cycle(n, 0.3 + 0.05 * n) for n in range(5)] + [cycle(5, 0.7, new=0)]
    assert verdict(history(*cycles), RULE) == GO


def test_after_the_last_reseed_the_verdict_is_to_stop() -> None:
    cycles = [cycle(n, 0.3 + 0.05 * n, new=0) for n in range(6)]
    assert verdict(history(*cycles, reseeds=2), RULE).action == "stop"


def test_a_reseed_starts_the_count_afresh() -> None:
    before = [cycle(n, 0.5, new=0) for n in range(6)]
    after = [cycle(n, 0.5, new=0, reseed=1) for n in (6, 7)]
    assert verdict(history(*before, after[0], reseeds=1), RULE) == GO


def test_a_used_up_source_of_tasks_ends_the_run() -> None:
    found = verdict(history(*flat(2), cycle(2, 0.5, exhausted=True)), RULE)
    assert str(found) == "exhausted:stop"
