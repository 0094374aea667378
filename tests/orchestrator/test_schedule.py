"""What comes next, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.commit import unfinished
from orchestrator.schedule import (
    Action,
    Commit,
    Paused,
    Stop,
    Train,
    Validate,
    Wait,
    backoff_left,
    expected_after,
    expected_after_training,
    followers_of,
    next_action,
)
from profiles.errors import ExitCode
from profiles.schema import Profile, Retry, Run, Validation
from state.history import AttemptFacts, CheckpointFacts, CycleFacts, History
from state.states import AttemptState, CycleState, RunState
from workers.contract import Outcome, Result

NOW = 1_000_000.0
PROFILE = Profile(name="test", run=Run(steps_per_cycle=20, max_cycles=9), retry=Retry(backoff_s=10, backoff_max_s=60))


def head(step: int) -> CheckpointFacts:
    return CheckpointFacts(f"id{step}", None, 1, step, f"checkpoints/s{step}", "digest", 100)


def cycle(number: int, state: CycleState, **changes: object) -> CycleFacts:
    first = 1 if number == 0 else 1 + 20 * (number - 1)
    end = 1 if number == 0 else first + 20
    facts = CycleFacts(number, "train" if number else "seed", state, first, end)
    return replace(facts, **changes)  # type: ignore[arg-type]


def history(current: CycleFacts | None = None, at_step: int | None = None, **changes: object) -> History:
    facts = History("run", "test", RunState.RUNNING, head=head(at_step) if at_step is not None else None)
    return replace(facts, current=current, **changes)  # type: ignore[arg-type]


def failed(
    number: int = 1, failure: str = "INTERNAL", code: int = 70, step: int = 3, ended_at: float = NOW
) -> AttemptFacts:
    return AttemptFacts(
        1, "train", number, f"token{number}", AttemptState.FAILED, 1, step, False, code, failure, ended_at=ended_at
    )


OPEN = cycle(1, CycleState.TRAINING)


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        pytest.param(history(), Train(0, 1, "seed", 1, 1), id="a new run is seeded first"),
        pytest.param(
            history(cycle(0, CycleState.TRAINED), 0), Validate(0, 1), id="the seed checkpoint is the start score"
        ),
        pytest.param(
            history(cycle(0, CycleState.COMMITTED), 0), Train(1, 1, "train", 1, 21), id="cycle 1 owns steps 1 to 20"
        ),
        pytest.param(
            history(cycle(1, CycleState.COMMITTED), 20), Train(2, 1, "train", 21, 41), id="and cycle 2 steps 21 to 40"
        ),
        pytest.param(history(cycle(1, CycleState.TRAINED), 20), Validate(1, 1), id="a trained cycle is validated"),
        pytest.param(history(cycle(1, CycleState.VALIDATED), 20), Commit(1), id="a validated cycle is committed"),
        pytest.param(
            history(OPEN, 7, last_attempt={"train": 1}),
            Train(1, 2, "train", 8, 21),
            id="a cycle stopped at step 7 goes on at step 8 and ends where it would have",
        ),
        pytest.param(
            history(cycle(1, CycleState.VALIDATING), 20, last_attempt={"train": 1, "validate": 1}),
            Validate(1, 2),
            id="a validation that was cut off is done again; training is not",
        ),
        pytest.param(
            history(cycle(9, CycleState.COMMITTED), 180),
            Stop("all 9 cycles are done", RunState.FINISHED, ExitCode.OK),
            id="the last cycle ends the run",
        ),
        pytest.param(
            history(cycle(2, CycleState.COMMITTED, verdict="plateau:stop", evidence="flat"), 40),
            Stop("flat", RunState.STAGNANT, ExitCode.STAGNANT),
            id="a stagnant run stops with its evidence",
        ),
        pytest.param(
            history(cycle(2, CycleState.COMMITTED, verdict="no_data:reseed"), 40),
            Train(3, 1, "train", 41, 61, reseed=1),
            id="a reseed is handed to the next cycle",
        ),
        pytest.param(
            history(cycle(2, CycleState.COMMITTED, verdict="plateau:continue"), 40),
            Train(3, 1, "train", 41, 61),
            id="a plateau that may continue continues",
        ),
        pytest.param(
            history(OPEN, 0, last_attempt={"train": 1}, failures=(failed(ended_at=NOW - 100),)),
            Train(1, 2, "train", 1, 21),
            id="after the wait the same cycle is tried again",
        ),
        pytest.param(
            history(
                OPEN, 0, last_attempt={"train": 2},
                failures=(failed(1, ended_at=NOW - 100), failed(2, ended_at=NOW - 100)),
            ),
            Train(1, 3, "train", 1, 21, isolate=True),
            id="the same failure twice is looked at in isolation",
        ),
        pytest.param(
            history(OPEN, 0, last_attempt={"train": 1}, failures=(failed(1, "CUDA_OOM", 71, ended_at=NOW - 100),)),
            Train(1, 2, "train", 1, 21, reductions=1),
            id="out of CUDA memory halves the rollout batch",
        ),
    ],
)  # fmt: skip
def test_what_comes_next(past: History, expected: Action) -> None:
    assert next_action(past, PROFILE, NOW) == expected


PAUSED = {"paused_at": NOW - 60}
BACKOFF = backoff_left([failed()], PROFILE.retry, "run", NOW)
EVERY_OTHER = Profile(name="test", run=PROFILE.run, retry=PROFILE.retry, validation=Validation(every=2))


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        pytest.param(history(OPEN, 7, **PAUSED), Paused(), id="a paused run trains nothing"),
        pytest.param(history(**PAUSED), Paused(), id="and is not seeded"),
        pytest.param(history(cycle(2, CycleState.TRAINED), 40, **PAUSED), Paused(), id="nor validated by itself"),
        pytest.param(
            history(cycle(2, CycleState.VALIDATED), 40, **PAUSED), Commit(2), id="what is done is still committed"
        ),
        pytest.param(
            history(cycle(9, CycleState.COMMITTED), 180, **PAUSED),
            Stop("all 9 cycles are done", RunState.FINISHED, ExitCode.OK),
            id="a run that is done ends, paused or not",
        ),
        pytest.param(
            history(OPEN, 7, failures=(failed(),), **PAUSED), Paused(), id="a pause outlasts the wait after a failure"
        ),
        pytest.param(
            history(OPEN, 7, validation_asked=7), Validate(1, 1, is_asked=True), id="a validation that was asked for"
        ),
        pytest.param(
            history(OPEN, 7, validation_asked=7, last_attempt={"train": 2, "validate": 3}),
            Validate(1, 4, is_asked=True),
            id="has a number of its own",
        ),
        pytest.param(
            history(OPEN, 7, validation_asked=7, **PAUSED),
            Validate(1, 1, is_asked=True),
            id="and a paused run does it too",
        ),
        pytest.param(
            history(OPEN, 7, validation_asked=9), Train(1, 1, "train", 8, 21), id="not before the step that it is for"
        ),
        pytest.param(
            history(OPEN, 7, validation_asked=7, is_head_validated=True),
            Train(1, 1, "train", 8, 21),
            id="nor again for a checkpoint that has scores",
        ),
        pytest.param(
            history(cycle(2, CycleState.TRAINED), 40, validation_asked=35),
            Validate(2, 1),
            id="the cycle's own validation answers it",
        ),
        pytest.param(
            history(cycle(1, CycleState.TRAINED), 20, validation_asked=20),
            Validate(1, 1, is_asked=True),
            id="a cycle that has none gets it before it is committed",
        ),
        pytest.param(
            history(cycle(1, CycleState.COMMITTED), 20, validation_asked=20),
            Validate(1, 1, is_asked=True),
            id="or after it, before the next one begins",
        ),
        pytest.param(
            history(OPEN, 7, validation_asked=7, failures=(failed(),)),
            Wait(BACKOFF, "INTERNAL: attempt 2 follows", "token1"),
            id="it waits after a failure like everything",
        ),
        pytest.param(
            history(validation_asked=0), Train(0, 1, "seed", 1, 1), id="without a checkpoint there is nothing to score"
        ),
    ],
)
def test_what_comes_next_when_somebody_asked_for_something(past: History, expected: Action) -> None:
    assert next_action(past, EVERY_OTHER, NOW) == expected


@pytest.mark.parametrize(
    ("seeding_s", "training_s", "is_over"),
    [
        pytest.param(0, 5399, False, id="a second is left"),
        pytest.param(0, 5400, True, id="the hours are over"),
        pytest.param(1800, 3600, True, id="those of seeding count"),
        pytest.param(1800, 3599, False, id="and no more than once"),
    ],
)
def test_max_hours_finish_the_run_between_two_cycles(seeding_s: float, training_s: float, is_over: bool) -> None:
    profile = Profile(name="test", run=Run(steps_per_cycle=20, max_hours=1.5))
    past = history(cycle(1, CycleState.COMMITTED), 20, seeding_s=seeding_s, training_s=training_s)
    ending = Stop("1 h 30 m of seeding and training have passed", RunState.FINISHED, ExitCode.OK)
    assert next_action(past, profile, NOW) == (ending if is_over else Train(2, 1, "train", 21, 41))


def test_hours_that_seeding_took_end_a_run_before_it_trains() -> None:
    past = history(cycle(0, CycleState.COMMITTED), 0, seeding_s=3600.0)
    assert isinstance(next_action(past, Profile(name="test", run=Run(max_hours=1.0)), NOW), Stop)


TRAINING, VALIDATING = Train(9, 1, "train", 161, 181), Validate(9, 1)


@pytest.mark.parametrize(
    ("action", "run", "every", "expected"),
    [
        pytest.param(TRAINING, Run(), 1, 2, id="one that validates, and one for the next cycle"),
        pytest.param(TRAINING, Run(max_cycles=9), 1, 1, id="the last cycle is validated"),
        pytest.param(TRAINING, Run(), 2, 1, id="a cycle that is not validated"),
        pytest.param(TRAINING, Run(max_hours=1), 2, 1, id="one that goes on if it dies"),
        pytest.param(VALIDATING, Run(max_cycles=9), 1, 0, id="and then there is nothing more to do"),
        pytest.param(VALIDATING, Run(max_cycles=10), 1, 1, id="a cycle is left"),
        pytest.param(VALIDATING, Run(), 1, 1, id="no limit"),
        pytest.param(VALIDATING, Run(max_hours=1), 1, 0, id="the hours are over"),
        pytest.param(VALIDATING, Run(max_hours=3), 1, 1, id="an hour is left"),
        pytest.param(VALIDATING, Run(phases=("seed",)), 1, 0, id="seeding was all"),
    ],
)
def test_only_as_many_workers_are_made_ready_as_can_be_needed(
    action: Train | Validate, run: Run, every: int, expected: int
) -> None:
    past = history(cycle(9, CycleState.VALIDATING), 180, training_s=7200.0)
    profile = Profile(name="test", run=run, validation=Validation(every=every))
    assert followers_of(action, past, profile) == expected


@pytest.mark.parametrize(
    ("validated", "run", "expected"),
    [
        pytest.param(cycle(0, CycleState.VALIDATING), Run(), Train(1, 1, "train", 1, 21), id="after the seed"),
        pytest.param(cycle(1, CycleState.VALIDATING), Run(), Train(2, 1, "train", 21, 41), id="after a cycle"),
        pytest.param(
            cycle(1, CycleState.VALIDATING, verdict="plateau:stop"), Run(), Train(2, 1, "train", 21, 41),
            id="the verdict is not known yet",
        ),
        pytest.param(cycle(9, CycleState.VALIDATING), Run(max_cycles=9), None, id="the last cycle"),
        pytest.param(None, Run(), None, id="there is no cycle"),
    ],
)  # fmt: skip
def test_what_follows_a_validation_is_known_before_its_result_if_that_changes_nothing(
    validated: CycleFacts | None, run: Run, expected: Train | None
) -> None:
    step = validated.end_step - 1 if validated is not None else 0
    assert expected_after(history(validated, step), Profile(name="test", run=run)) == expected


@pytest.mark.parametrize(
    ("training", "step", "run", "expected"),
    [
        pytest.param(Train(1, 1, "train", 1, 21), 5, Run(), Train(2, 1, "train", 21, 41), id="the next cycle"),
        pytest.param(Train(1, 2, "train", 6, 21), 5, Run(), Train(2, 1, "train", 21, 41), id="after a resume too"),
        pytest.param(Train(1, 1, "train", 1, 21), 5, Run(max_cycles=1), None, id="it is the last cycle"),
        pytest.param(Train(0, 1, "seed", 1, 1), None, Run(), None, id="there is no checkpoint to load with"),
    ],
)
def test_what_follows_a_cycle_in_training_is_known_before_its_end(
    training: Train, step: int | None, run: Run, expected: Train | None
) -> None:
    current = cycle(training.cycle, CycleState.TRAINING)
    past = history(current, step) if step is not None else replace(history(current, 0), head=None)
    assert expected_after_training(training, past, Profile(name="test", run=run)) == expected


def test_a_failure_waits_for_the_backoff() -> None:
    action = next_action(history(OPEN, 0, failures=(failed(),)), PROFILE, NOW)
    assert isinstance(action, Wait)
    assert 8.0 <= action.seconds <= 12.0


def test_after_a_single_kill_the_next_attempt_follows_at_once() -> None:
    assert isinstance(next_action(history(OPEN, 0, failures=(failed(failure="signal:9"),)), PROFILE, NOW), Train)


@pytest.mark.parametrize("failure", ["hung:step", "host_oom", "signal:11"])
def test_after_a_kill_with_a_reason_it_waits(failure: str) -> None:
    assert isinstance(next_action(history(OPEN, 0, failures=(failed(failure=failure),)), PROFILE, NOW), Wait)


def test_the_backoff_doubles_and_has_a_limit() -> None:
    failures = tuple(failed(n, failure=f"signal:{n}") for n in range(1, 5))
    action = next_action(history(OPEN, 0, failures=failures), PROFILE, NOW)
    assert isinstance(action, Wait)
    assert 48.0 <= action.seconds <= 72.0


def test_a_clock_set_back_never_delays_beyond_the_backoff() -> None:
    action = next_action(history(OPEN, 0, failures=(failed(ended_at=NOW + 9e9),)), PROFILE, NOW)
    assert isinstance(action, Wait)
    assert action.seconds <= 12.0


def test_a_wait_that_is_over_is_not_begun_again_whatever_the_wall_clock_says() -> None:
    past = history(OPEN, 0, last_attempt={"train": 1}, failures=(failed(ended_at=NOW + 9e9),))
    first = next_action(past, PROFILE, NOW)
    assert isinstance(first, Wait) and first.failure == "token1"
    assert isinstance(next_action(past, PROFILE, NOW, waited=first.failure), Train)
    another = replace(past, failures=(*past.failures, failed(2, ended_at=NOW)))
    assert isinstance(next_action(another, PROFILE, NOW, waited=first.failure), Wait)


def test_three_failures_of_one_class_at_one_step_end_the_run() -> None:
    failures = tuple(failed(n, ended_at=0) for n in range(1, 4))
    action = next_action(history(OPEN, 0, failures=failures), PROFILE, NOW)
    assert isinstance(action, Stop)
    assert (action.exit_code, action.state) == (ExitCode.INTERNAL, RunState.FAILED)
    assert "step 4" in action.reason


def test_five_failures_without_a_checkpoint_end_the_run_whatever_they_are() -> None:
    failures = tuple(failed(n, failure=f"signal:{n}", ended_at=0) for n in range(1, 6))
    action = next_action(history(OPEN, 0, failures=failures), PROFILE, NOW)
    assert isinstance(action, Stop)
    assert action.exit_code == ExitCode.INTERNAL


@pytest.mark.parametrize("code", [64, 65, 66, 73, 77])
def test_what_another_attempt_cannot_cure_ends_the_run_at_once(code: int) -> None:
    failures = (failed(code=code, failure=ExitCode(code).name),)
    action = next_action(history(OPEN, 0, failures=failures), PROFILE, NOW)
    assert isinstance(action, Stop)
    assert action.exit_code == code


def test_a_job_that_the_cluster_can_never_start_ends_the_run_at_once() -> None:
    never = replace(failed(failure="impossible", code=ExitCode.CLUSTER), message="n1 to n3 are not nine nodes")
    action = next_action(history(OPEN, 7, failures=(never,)), PROFILE, NOW)
    assert isinstance(action, Stop)
    assert (action.state, action.exit_code) == (RunState.FAILED, ExitCode.CLUSTER)
    assert "n1 to n3 are not nine nodes" in action.reason and "sinfo" in action.advice


def test_a_failure_that_tells_its_remedy_ends_with_it() -> None:
    failures = (replace(failed(code=66, failure="INPUT"), message="no such target\nset another one"),)
    action = next_action(history(OPEN, 0, failures=failures), PROFILE, NOW)
    assert isinstance(action, Stop)
    assert action.reason.startswith("no such target (cycle 1") and action.advice == "set another one"


def test_an_error_of_several_lines_is_the_reason_whole_and_only_what_follows_it_is_advice() -> None:
    error = "2 of 7 lines are no problems:\n  line 2: no `answer`\n  line 3: no JSON"
    result = Result("t", "train", Outcome.FAILED, 66, 0, error=error, advice="correct them")
    ended = unfinished(result, "INPUT", lost=False)
    assert ended.message == "2 of 7 lines are no problems: line 2: no `answer`; line 3: no JSON\ncorrect them"
    past = history(OPEN, 0, failures=(replace(failed(code=66), message=ended.message),))
    action = next_action(past, PROFILE, NOW)
    assert isinstance(action, Stop) and action.advice == "correct them" and "line 3: no JSON (cycle 1" in action.reason


def test_validation_every_third_cycle_still_scores_the_first_and_the_last() -> None:
    profile = Profile(name="t", run=Run(max_cycles=5), validation=Validation(every=3))
    due = [
        isinstance(next_action(history(cycle(n, CycleState.TRAINED), 20 * n), profile, NOW), Validate) for n in range(6)
    ]
    assert due == [True, False, False, True, False, True]
