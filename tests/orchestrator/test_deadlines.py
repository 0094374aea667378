"""Which deadline has passed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.deadlines import StepTimes, Watch, overdue, step_deadline_s
from profiles.schema import Timeouts
from state.facts import Line
from workers.contract import HELD, PAUSED

RULE = Timeouts(startup_s=10, heartbeat_s=20, step_min_s=100, step_factor=8, checkpoint_s=30, paused_s=300)
BUSY = Watch(spawned_at=0, ready=True, started_at=0, heard_at=1000, progress_at=1000, steps_done=3, stage="solve")


@pytest.mark.parametrize(
    ("watch", "now", "expected"),
    [
        pytest.param(Watch(spawned_at=0), 9, "", id="starting up takes a while"),
        pytest.param(Watch(spawned_at=0), 11, "startup", id="but not for ever"),
        pytest.param(BUSY, 1019, "", id="silence shorter than the limit"),
        pytest.param(BUSY, 1021, "heartbeat", id="silence longer than the limit"),
        pytest.param(
            Watch(0, True, 0, heard_at=1100, progress_at=1000, steps_done=3, stage="solve"), 1101, "stage solve",
            id="a heartbeat without progress proves nothing",
        ),
        pytest.param(
            Watch(0, True, 0, heard_at=1300, progress_at=1000, steps_done=0, stage="solve"), 1301, "",
            id="the first step may compile",
        ),
        pytest.param(
            Watch(0, True, 0, heard_at=1040, progress_at=1000, steps_done=3, stage="checkpoint"), 1041, "checkpoint",
            id="a checkpoint has a deadline of its own",
        ),
        pytest.param(
            Watch(0, True, None, heard_at=1000, progress_at=0), 1001, "", id="a standby only has to breathe",
        ),
        pytest.param(
            Watch(0, True, 0, heard_at=9000, progress_at=0, stage=HELD, is_held=True), 9001, "",
            id="a worker that was started ahead waits as long as the validation takes",
        ),
        pytest.param(
            Watch(0, True, 0, heard_at=9000, progress_at=0, stage=HELD), 9001, "stage held",
            id="and no longer once it may save",
        ),
        pytest.param(
            Watch(0, True, 0, heard_at=9000, progress_at=0, steps_done=3, stage="update", is_held=True), 9001,
            "stage update", id="its steps have the deadline of steps",
        ),
    ],
)  # fmt: skip
def test_deadlines(watch: Watch, now: float, expected: str) -> None:
    assert overdue(watch, RULE, StepTimes([1.0] * 20), head_bytes=0, now=now) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(1000 + 130, "", id="a step, and the writing of a checkpoint"),
        pytest.param(1000 + 131, "checkpoint", id="and no longer"),
    ],
)
def test_a_worker_that_was_asked_for_a_checkpoint_has_until_its_step_and_the_writing_could_be_done(
    now: float, expected: str
) -> None:
    works = replace(BUSY, heard_at=now, progress_at=now)
    assert overdue(works, RULE, StepTimes([1.0]), head_bytes=0, now=now, checkpoint_asked_at=1000) == expected
    assert overdue(works, RULE, StepTimes([1.0]), head_bytes=0, now=now) == ""


@pytest.mark.parametrize(
    ("waited_s", "resumed_s_ago", "expected"),
    [
        pytest.param(430, None, "", id="as long as a pause may take, with a step and a checkpoint"),
        pytest.param(431, None, "pause", id="but no longer, or the GPU would never be free"),
        pytest.param(431, 100, "", id="once asked to go on, it has the time of a step"),
        pytest.param(431, 101, f"stage {PAUSED}", id="and no longer: it hangs"),
    ],
)
def test_a_worker_that_waits_between_two_steps_has_deadlines_too(
    waited_s: float, resumed_s_ago: float | None, expected: str
) -> None:
    now = 1000 + waited_s
    watch = replace(BUSY, heard_at=now, stage=PAUSED).asked_to_pause(True, 1000)
    if resumed_s_ago is not None:
        watch = watch.asked_to_pause(False, now - resumed_s_ago)
    assert overdue(watch, RULE, StepTimes([1.0]), head_bytes=0, now=now) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({"checkpoint_asked_at": 1000.0}, "checkpoint", id="a checkpoint"),
        pytest.param({"stop_asked_at": 1000.0}, "stop", id="a stop"),
    ],
)
def test_a_worker_that_waits_in_a_pause_owes_what_it_is_asked_for(asked: dict[str, float], expected: str) -> None:
    watch = replace(BUSY, stage=PAUSED, stop_asked_at=asked.get("stop_asked_at")).asked_to_pause(True, 1000)

    def late(now: float) -> str:
        at = asked.get("checkpoint_asked_at")
        return overdue(replace(watch, heard_at=now), RULE, StepTimes([1.0]), 0, now, checkpoint_asked_at=at)

    assert (late(1130), late(1131)) == ("", expected)


def test_a_pause_in_the_middle_of_a_step_gives_the_step_no_more_time() -> None:
    assert BUSY.asked_to_pause(True, 1090).asked_to_pause(False, 1095).progress_at == BUSY.progress_at


def test_a_stop_that_waits_for_a_checkpoint_of_the_workers_own_has_that_much_longer() -> None:
    def late(now: float, **more: float) -> str:
        works = replace(BUSY, heard_at=now, progress_at=now, stop_asked_at=1000)
        return overdue(works, RULE, StepTimes([1.0]), head_bytes=0, now=now, **more)

    assert late(1131) == "stop" and late(1131, stop_may_wait_s=500) == ""
    assert late(1630, stop_may_wait_s=500) == "" and late(1631, stop_may_wait_s=500) == "stop"


def test_the_step_deadline_follows_the_median_of_the_last_twenty_steps() -> None:
    times = StepTimes([1.0] * 100 + [50.0] * 20)
    assert step_deadline_s(times, RULE, is_first=False) == 400.0


def test_one_slow_step_does_not_move_the_deadline() -> None:
    assert step_deadline_s(StepTimes([20.0] * 19 + [9999.0]), RULE, is_first=False) == 160.0


def test_steps_count_for_the_deadline_as_soon_as_they_are_ingested() -> None:
    times = StepTimes([1.0])
    told = [("step", {"seconds": 30.0}), ("step", {"seconds": 40}), ("stage", {"seconds": 999.0})]
    times.take([Line(seq, type_, seq, 0.0, 0.0, data, "") for seq, (type_, data) in enumerate(told)])
    assert times.median_s == 30.0


def test_a_step_is_finished_once_it_is_ingested_whatever_heartbeats_have_told() -> None:
    begun = Watch(spawned_at=0, started_at=0, first_step=7)
    told = [Line(1, "stage", 9, 0.0, 0.0, {}, ""), Line(2, "step", 7, 0.0, 0.0, {}, "")]
    assert begun.with_steps(told[:1]).steps_done == 0 and begun.with_steps(told).steps_done == 1
    assert replace(begun, steps_done=3).with_steps(told).steps_done == 3


def test_a_step_without_a_time_counts_for_nothing() -> None:
    times = StepTimes([0.0, 7.0])
    times.take([Line(1, "step", 1, 0.0, 0.0, data, "") for data in ({}, {"seconds": 0.0}, {"seconds": "soon"})])
    assert times.median_s == 7.0


def test_before_the_first_step_the_least_time_holds() -> None:
    assert step_deadline_s(StepTimes(), RULE, is_first=False) == RULE.step_min_s
