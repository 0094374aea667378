"""What is told of a run, from two looks at its store."""

from __future__ import annotations

from typing import Any

import pytest

from workers.notify.events import Best, Event, Known, Look, events_of, vanished

HOUR = 3600.0
BEST = Best("c1", 20, 0.5, 900)
BETTER = Best("c2", 40, 0.6, 900)


def told(known: Known, look: Look, now: float = 0.0, every_s: float = 0.0) -> list[Event]:
    return list(events_of("night", "r0", known, look, now, every_s))


@pytest.mark.parametrize(
    ("known", "look", "expected"),
    [
        pytest.param({}, {"state": "running"}, [], id="a run that goes on is no news"),
        pytest.param({"state": "running"}, {"state": "finished", "changed_at": 5.0}, [("end", "night: finished")]),
        pytest.param({"state": "running"}, {"state": "stopped", "changed_at": 5.0}, [("end", "night: stopped")]),
        pytest.param({"state": "running"}, {"state": "stagnant", "changed_at": 5.0}, [("end", "night: stagnant")]),
        pytest.param({"state": "running"}, {"state": "failed", "changed_at": 5.0}, [("crash", "night: failed")]),
        pytest.param(
            {"state": "stopped", "changed_at": 5.0}, {"state": "stopped", "changed_at": 5.0}, [],
            id="an ending is told once",
        ),
        pytest.param(
            {"state": "stopped", "changed_at": 5.0}, {"state": "stopped", "changed_at": 9.0},
            [("end", "night: stopped")], id="and again if the run went on between two looks",
        ),
        pytest.param(
            {"state": "running"}, {"state": "paused", "changed_at": 5.0}, [("disk", "night: paused, the disk is full")]
        ),
        pytest.param({"state": "paused", "changed_at": 5.0}, {"state": "running"}, [("disk", "night: goes on")]),
        pytest.param(
            {"cycle": 3}, {"state": "running", "cycles": [(4, "go:go", ""), (5, "plateau:stop", "flat")]},
            [("stagnation", "night: plateau, so: stop")],
        ),
        pytest.param({"cycle": 5}, {"state": "running", "cycles": [(5, "plateau:stop", "flat")]}, [], id="old verdict"),
        pytest.param(
            {"cycle": 3}, {"state": "running", "cycles": [(4, "no_data:reseed", "poor")]},
            [("stagnation", "night: no data, so: reseed")],
        ),
        pytest.param({}, {"state": "running", "bests": {"pocket": BEST}}, [], id="a first score is no new best"),
        pytest.param(
            {"bests": {"pocket": BEST}}, {"state": "running", "bests": {"pocket": BETTER}},
            [("best", "night: new best")],
        ),
        pytest.param({"bests": {"pocket": BEST}}, {"state": "running", "bests": {"pocket": BEST}}, [], id="the same"),
    ],
)  # fmt: skip
def test_what_is_told(known: dict[str, Any], look: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    seen = Known(**known)
    assert [(event.kind, event.title) for event in told(seen, Look(**look))] == expected
    assert told(seen, Look(**look)) == []  # nothing is told twice


def test_a_best_that_comes_too_soon_is_told_later_with_the_whole_rise() -> None:
    known = Known(bests={"pocket": BEST}, best_told_at=0.0)
    best = Best("c3", 60, 0.7, 900)
    assert told(known, Look(state="running", bests={"pocket": BETTER}), now=100.0, every_s=HOUR) == []
    (event,) = told(known, Look(state="running", bests={"pocket": best}), now=HOUR, every_s=HOUR)
    assert event.text == "pocket 0.700 of 900 at step 60, before 0.500"


def test_a_best_is_not_held_back_when_the_clock_was_set_back() -> None:
    known = Known(bests={"pocket": BEST}, best_told_at=90 * 24 * HOUR)
    assert told(known, Look(state="running", bests={"pocket": BETTER}), now=HOUR, every_s=HOUR) != []


def test_a_best_is_not_held_back_when_the_run_ends() -> None:
    known = Known(state="running", bests={"pocket": BEST}, best_told_at=0.0)
    look = Look(state="finished", changed_at=9.0, bests={"pocket": BETTER})
    assert [event.kind for event in told(known, look, now=100.0, every_s=HOUR)] == ["end", "best"]


def test_ids_differ_between_events_and_are_the_same_for_one() -> None:
    def once() -> list[str]:
        known = Known(state="running", cycle=1, bests={"pocket": BEST})
        look = Look("finished", "done", 9.0, 40, {"pocket": BETTER}, [(2, "plateau:stop", "flat")])
        return [event.id for event in told(known, look)]

    assert once() == once() and len(set(once())) == 3


def test_a_vanished_master_is_a_crash_that_names_the_command() -> None:
    event = vanished("night", "r0", Look(state="running", step=40), now=7.0)
    assert (event.kind, event.step) == ("crash", 40) and "`run --run night` goes on from it" in event.text


def test_a_second_vanished_master_is_another_message() -> None:
    look = Look(state="running", step=40)  # the state of a run that trains has no time
    assert vanished("night", "r0", look, now=7.0).id != vanished("night", "r0", look, now=900.0).id


def test_control_characters_of_a_run_s_reason_do_not_pass() -> None:
    (event,) = told(Known(state="running"), Look(state="failed", changed_at=1.0, reason="bad \x1b[2J\x07 file"))
    assert event.text.isprintable()
