"""The meter of stagnation: full exactly where the rule fires, and by the rule's own numbers before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.nearness import every, nearest
from orchestrator.stagnation import verdict
from profiles.schema import Stagnation
from state.history import CycleFacts
from tests.orchestrator.test_stagnation import RULE, cycle, flat, history

KINDS = {"collapse": "collapse", "no data": "no_data", "plateau": "plateau"}


def shares(*cycles: CycleFacts, rule: Stagnation = RULE) -> dict[str, float]:
    return {one.rule: one.share for one in every(history(*cycles), rule)}


def test_a_plateau_comes_nearer_cycle_by_cycle_and_is_full_when_the_rule_fires() -> None:
    seen = [shares(*flat(count))["plateau"] for count in range(2, 25)]
    assert seen == sorted(seen) and seen[0] < 0.1
    assert [share == 1 for share in seen] == [verdict(history(*flat(n)), RULE).kind == "plateau" for n in range(2, 25)]


def test_a_rising_run_is_not_near() -> None:
    cycles = [cycle(n, 0.3 + 0.01 * n) for n in range(30)]
    found = nearest(history(*cycles), RULE)
    assert found is not None and (found.rule, found.share) == ("plateau", 0)
    assert found.text.startswith("it rises: +"), found.text


def test_poor_cycles_are_counted_in_a_row() -> None:
    rule = Stagnation(min_cycles=1, poor_cycles=4)
    poor = [cycle(n, 0.5, new=0 if n >= 3 else 30) for n in range(6)]
    assert shares(*poor, rule=rule)["no data"] == 3 / 4
    assert shares(*poor, cycle(6, 0.5), rule=rule)["no data"] == 0, "a good one begins anew"


def test_a_fall_counts_by_its_size_and_by_its_errors() -> None:
    cycles = [cycle(n, 0.8, 0.8) for n in range(6)]
    half = [cycle(n, 0.75, 0.75) for n in range(6, 9)]
    assert shares(*cycles, *half)["collapse"] == pytest.approx(0.5)
    found = next(one for one in every(history(*cycles, *half), RULE) if one.rule == "collapse")
    assert found.text.startswith("5.0 of 10.0 points below the best, ") and found.text.endswith("of 3 standard errors")


def test_nothing_is_full_before_the_rule_begins_to_judge() -> None:
    rule = Stagnation(min_cycles=40)
    found = nearest(history(*flat(30)), rule)
    assert found is not None and found.share < 1 and "judged from cycle 40 on, 29 are done" in found.text


def test_a_run_that_has_not_trained_has_no_meter() -> None:
    assert nearest(history(cycle(0, 0.3)), RULE) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from([0, 1, 30]), st.sampled_from([0, 20])),
        min_size=2,
        max_size=40,
    ),
    st.sampled_from([40, 400]),
)
def test_the_meter_is_full_exactly_where_the_rule_fires(drawn: list[tuple[int, int, int, int]], problems: int) -> None:
    cycles = [
        cycle(n, greedy / 20, sampled / 20, new=new, learnable=learnable, problems=problems)
        for n, (greedy, sampled, new, learnable) in enumerate(drawn)
    ]
    fired = verdict(history(*cycles), RULE).kind
    full = {KINDS[name] for name, share in shares(*cycles).items() if share == 1}
    assert fired in full if full else fired == "go"
