"""When a run must stop because answers are no verdicts."""

from __future__ import annotations

import pytest

from workers.sandbox.server.tally import VERDICT, WINDOW, Tally, stop_reason

RIGHT = [VERDICT]


@pytest.mark.parametrize(
    ("newest", "stops"),
    [
        pytest.param([], False, id="none yet"),
        pytest.param(RIGHT * WINDOW, False, id="all are verdicts"),
        pytest.param(RIGHT * 495 + ["late"] * 5, False, id="one in a hundred"),
        pytest.param(RIGHT * 494 + ["late"] * 6, True, id="more"),
        pytest.param(RIGHT * 494 + ["late"] * 3 + ["refused", "broken", "turned_away"], True, id="of all kinds"),
        pytest.param(["late"] * 5, False, id="few, that verdicts may yet outweigh"),
        pytest.param(["late"] * 6, True, id="so many that no verdicts can"),
        pytest.param([*RIGHT, "HTTP 504"] * 6, True, id="kinds that a client names"),
    ],
)
def test_a_run_stops_above_one_percent(newest: list[str], stops: bool) -> None:
    assert (stop_reason(newest) is not None) is stops


def tally(*kinds: str) -> Tally:
    found = Tally()
    for kind in kinds:
        found.count(kind)
    return found


def test_only_the_newest_responses_count() -> None:
    assert tally(*["late"] * 6, *RIGHT * (WINDOW - 5)).stop_reason is None
    assert tally(*RIGHT * 1_000_000, *["late"] * 6).stop_reason is not None


def test_what_is_in_no_share_stops_no_run() -> None:
    found = tally(*["wrong_secret", "from_wall"] * 500)
    assert found.stop_reason is None and found.counts["wrong_secret"] == found.counts["from_wall"] == 500


def test_the_reason_has_the_numbers() -> None:
    assert stop_reason([*RIGHT * 150, *["late"] * 40, *["refused"] * 10]) == (
        "50 of the last 200 answers of the code server were no verdicts (40 late, 10 refused)"
    )
