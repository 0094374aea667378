"""When a run counts as stagnant, as a table."""

from __future__ import annotations

import pytest

from orchestrator.stagnation import GO, verdict
from profiles.schema import Stagnation
from state.history import AnswerBits, CycleFacts, History, ValidationFacts
from state.states import CycleState, RunState

RULE = Stagnation(min_cycles=2, poor_cycles=2)
NAMES = tuple(map(str, range(400)))


def cycle(
    number: int, greedy: float, sampled: float = 0.4, new: int = 30, learnable: int = 20, problems: int = 400,
    with_bits: bool = True, **more: object,
) -> CycleFacts:  # fmt: skip
    """The easiest problems are right: of two cycles the better one has all that the other has."""
    metrics = {"mean": {"accuracy": greedy, "sampled_accuracy": sampled, "n": problems}}
    right = [(1 << round(share * problems)) - 1 for share in (greedy, sampled)]
    answers = {"ded": AnswerBits(NAMES[:problems], *right)} if with_bits else {}
    score = ValidationFacts(number, number * 20, "pocket", greedy, 0, problems, metrics, answers)
    return CycleFacts(
        number, "train" if number else "seed", CycleState.VALIDATED, number * 20 - 19, number * 20 + 1,
        proposals=100, new_examples=new, learnable=learnable, validations=(score,), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def history(*cycles: CycleFacts, reseeds: int = 0) -> History:
    return History("run", "test", RunState.RUNNING, current=cycles[-1], recent=cycles[:-1], reseeds=reseeds)


def flat(count: int, **more: object) -> tuple[CycleFacts, ...]:
    return tuple(cycle(n, 0.5, **more) for n in range(count))  # type: ignore[arg-type]


def test_rising_accuracy_goes_on() -> None:
    cycles = [cycle(n, 0.3 + 0.005 * n) for n in range(60)]
    assert all(verdict(history(*cycles[:n]), RULE) == GO for n in range(1, 61))


def test_O5_a_healthy_day_of_constant_counts_is_not_stagnant() -> None:
    """The published rule counted rows of files of a constant length, and stopped every run."""
    day = [cycle(n, 0.3 + 0.001 * n, 0.2 + 0.002 * n) for n in range(288)]
    assert all(verdict(history(*day[max(0, n - 60) : n]), Stagnation()) == GO for n in range(1, len(day) + 1))


def test_flat_accuracy_is_a_plateau_once_the_window_is_full_and_the_evidence_says_what_could_be_missed() -> None:
    assert verdict(history(*flat(23)), RULE) == GO
    found = verdict(history(*flat(24)), RULE)
    assert (found.kind, found.action) == ("plateau", "stop")
    assert (
        "no trend: +0.0 points (95 %: -0.7 to +0.7) over 24 validated cycles (the same 400 problems)" in found.evidence
    )
    assert "at most a rise of 0.4 points in 10 cycles could have been missed" in found.evidence, found.evidence


def test_flat_greedy_with_rising_sampled_accuracy_is_no_plateau() -> None:
    """Greedy accuracy is a step function: the policy moves long before it does."""
    assert verdict(history(*(cycle(n, 0.31, 0.2 + 0.01 * n) for n in range(30))), RULE) == GO


@pytest.mark.parametrize(("count", "says"), [(40, ""), (61, "no trend, but a rise of ")])
def test_a_handful_of_problems_never_makes_a_plateau(count: int, says: str) -> None:
    found = verdict(history(*flat(count, problems=12)), RULE)
    assert found.action == "go"
    assert found.evidence.startswith(says) and ("validate on more problems" in found.evidence) == bool(says)


def test_a_run_without_bits_is_judged_by_its_scores_over_a_longer_window() -> None:
    cycles = flat(60, with_bits=False)
    first = next(n for n in range(1, 61) if verdict(history(*cycles[:n]), RULE) != GO)
    assert 30 < first < 60
    found = verdict(history(*cycles[:first]), RULE)
    assert found.kind == "plateau" and "not compared one by one" in found.evidence


def test_falling_slowly_is_a_plateau_too() -> None:
    assert verdict(history(*(cycle(n, 0.5 - 0.002 * n) for n in range(24))), RULE).kind == "plateau"


@pytest.mark.parametrize(
    ("before", "after", "newest", "kind"),
    [
        pytest.param(0.5, 0.3, 3, "collapse", id="20 points for three cycles"),
        pytest.param(0.5, 0.3, 2, "go", id="two cycles may be a dip"),
        pytest.param(0.5, 0.45, 3, "go", id="5 points are no collapse"),
        pytest.param(0.1, 0.0, 3, "collapse", id="all that there was"),
        pytest.param(0.95, 0.0, 3, "collapse", id="everything at once"),
    ],
)
def test_accuracy_that_falls_and_stays_down_is_a_collapse(before: float, after: float, newest: int, kind: str) -> None:
    cycles = [cycle(n, before, before) for n in range(9)] + [cycle(n, after, after) for n in range(9, 9 + newest)]
    found = verdict(history(*cycles), RULE)
    assert found.kind == kind
    if kind == "collapse":
        assert found.action == "stop" and f"fell by {100 * (before - after):.1f} points" in found.evidence
        assert verdict(history(*cycles), Stagnation(min_cycles=2, on_collapse="continue")).action == "continue"


def test_a_young_run_is_not_judged() -> None:
    assert verdict(history(*flat(30)), Stagnation(min_cycles=30)) == GO


def test_a_cycle_without_validation_has_no_say_in_accuracy() -> None:
    unscored = CycleFacts(24, "train", CycleState.TRAINED, 1, 2, proposals=100, new_examples=30, learnable=20)
    assert verdict(history(*flat(24), unscored), RULE) == GO


@pytest.mark.parametrize("poor", [{"new": 2}, {"learnable": 1}])
def test_poor_cycles_in_a_row_mean_no_data(poor: dict[str, int]) -> None:
    found = verdict(history(*flat(4), *(cycle(n, 0.5, **poor) for n in (4, 5))), RULE)  # type: ignore[arg-type]
    assert (found.kind, found.action) == ("no_data", "reseed")


@pytest.mark.parametrize("with_bits", [True, False])
def test_rising_accuracy_vetoes_no_data(with_bits: bool) -> None:
    cycles = [cycle(n, 0.3 + 0.02 * n, 0.3 + 0.02 * n, learnable=1, with_bits=with_bits) for n in range(8)]
    found = verdict(history(*cycles), RULE)
    assert found.action == "go"
    assert "learnable proposals were under 5% of proposals" in found.evidence and "but accuracy rises" in found.evidence


def test_one_poor_cycle_is_no_verdict() -> None:
    assert verdict(history(*flat(5), cycle(5, 0.5, new=0)), RULE) == GO


def test_after_the_last_reseed_the_verdict_is_to_stop() -> None:
    assert verdict(history(*flat(6, new=0), reseeds=2), RULE).action == "stop"


def test_a_reseed_starts_the_count_afresh() -> None:
    before = flat(30)
    after = [cycle(n, 0.2, 0.2, reseed=1) for n in range(30, 54)]
    assert verdict(history(*before, *after[:-1], reseeds=1), RULE) == GO  # neither a collapse nor a plateau
    assert verdict(history(*before, *after, reseeds=1), RULE).kind == "plateau"


def test_a_plateau_may_reseed_or_continue() -> None:
    for action in ("reseed", "continue"):
        assert verdict(history(*flat(24)), Stagnation(min_cycles=2, on_plateau=action)).action == action  # type: ignore[arg-type]


def test_a_used_up_source_of_tasks_ends_the_run() -> None:
    found = verdict(history(*flat(2), cycle(2, 0.5, exhausted=True)), RULE)
    assert str(found) == "exhausted:stop"
