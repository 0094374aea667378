"""Decides what the master does next. (pure)"""

from __future__ import annotations

import hashlib
import signal
from dataclasses import dataclass, replace

from orchestrator.display.wording import duration
from orchestrator.goal import names_of, score_of
from orchestrator.launchers.job_end import Cause
from profiles.errors import ExitCode
from profiles.goal import Goal, parse_goal
from profiles.schema import Profile, Retry
from profiles.worker_kinds import worker_kind_of
from state.history import AttemptFacts, CycleFacts, History
from state.states import CycleState, RunState

KILLED = f"signal:{signal.SIGKILL:d}"
"""Failure of an attempt that somebody else killed; our own kills of hung workers and the kernel's have other names."""


@dataclass(frozen=True)
class Train:
    """Train steps first_step to end_step - 1 of a cycle, starting from the head."""

    cycle: int
    attempt: int
    phase: str
    first_step: int
    end_step: int
    reseed: int = 0
    isolate: bool = False
    reductions: int = 0


@dataclass(frozen=True)
class Validate:
    """Score the head on held-out problems. is_asked: somebody wants it; the cycle and its rules do not."""

    cycle: int
    attempt: int
    is_asked: bool = False


@dataclass(frozen=True)
class Commit:
    """Judge and close a finished cycle."""

    cycle: int


@dataclass(frozen=True)
class Wait:
    seconds: float
    """Counted from the decision, by the monotonic clock."""
    reason: str
    failure: str = ""
    """Token of the failed attempt that causes the wait."""


@dataclass(frozen=True)
class Paused:
    """No worker starts until somebody resumes the run."""


@dataclass(frozen=True)
class Stop:
    reason: str
    state: RunState
    exit_code: ExitCode
    advice: str = ""


Action = Train | Validate | Commit | Wait | Paused | Stop

FINAL_CODES = {
    ExitCode.SPEC,
    ExitCode.VERSION,
    ExitCode.INPUT,
    ExitCode.DISK,
    ExitCode.PERMISSION,
    ExitCode.MISMATCH,
    ExitCode.REWARD,
}
"""Worker exit codes that a retry cannot fix."""

NOT_ITS_FAULT = {Cause.NODE, Cause.PREEMPTED, Cause.UNPLACED}
"""Ends of jobs that say nothing about the run: the next attempt follows at once, however often that happens."""


def next_action(history: History, profile: Profile, now: float, waited: str = "") -> Action:
    """The next action. Depends only on the arguments.

    A paused run starts no worker but for a validation that somebody asked for. It still closes what is done, and ends.

    now and stored times are UTC seconds. waited: token of the failure whose wait is over, regardless of the wall clock.
    """
    action = _without_requests(history, profile, now, waited)
    wanted = asked_validation(history, action)
    if wanted is not None:
        return wanted
    is_paused = history.paused_at is not None and isinstance(action, Train | Validate | Wait)
    return Paused() if is_paused else action


def asked_validation(history: History, action: Action) -> Validate | None:
    """The validation that somebody asked for, if it comes before `action`; None: it is not due, or the cycle's own
    answers it. A wait comes first, because what failed may fail again."""
    asked, head, current = history.validation_asked, history.head, history.current
    if asked is None or head is None or current is None or head.step < asked or history.is_head_validated:
        return None
    if isinstance(action, Validate):
        return action
    if not isinstance(action, Train | Commit):
        return None
    return Validate(current.cycle, attempt=history.last_attempt.get("validate", 0) + 1, is_asked=True)


def _without_requests(
    history: History, profile: Profile, now: float, waited: str
) -> Train | Validate | Commit | Wait | Stop:
    """What the run would do by itself."""
    failures = [failure for failure in history.failures if failure.failure not in NOT_ITS_FAULT]
    if failures and (ending := crash_loop(failures, profile.retry)) is not None:
        return ending
    if failures and failures[-1].token != waited:
        last = failures[-1]
        if (left := backoff_left(failures, profile.retry, history.run_id, now)) > 0:
            return Wait(left, f"{last.failure}: attempt {last.attempt + 1} follows", last.token)
    current = history.current
    if current is None:
        return Train(cycle=0, attempt=1, phase="seed", first_step=1, end_step=1)
    if current.state == CycleState.COMMITTED:
        return after_cycle(history, current, profile)
    return within_cycle(history, current, profile, failures)


def within_cycle(
    history: History, current: CycleFacts, profile: Profile, failures: list[AttemptFacts]
) -> Train | Validate | Commit:
    """The next part of an open cycle: train, validate or commit."""
    trained = history.head is not None and (history.head.step >= current.end_step - 1 or current.exhausted)
    if current.state in (CycleState.TRAINED, CycleState.VALIDATING) or (
        current.state == CycleState.BLOCKED and trained
    ):
        if current.state == CycleState.TRAINED and not validation_is_due(current, profile):
            return Commit(current.cycle)
        return Validate(current.cycle, attempt=history.last_attempt.get("validate", 0) + 1)
    if current.state == CycleState.VALIDATED:
        return Commit(current.cycle)
    return Train(
        cycle=current.cycle,
        attempt=history.last_attempt.get("train", 0) + 1,
        phase=current.phase,
        first_step=history.step + 1,
        end_step=current.end_step,
        reseed=current.reseed,
        isolate=len(failures) >= 2 and failures[-1].failure == failures[-2].failure,
        reductions=reductions(history, failures),
    )


def after_cycle(history: History, last: CycleFacts, profile: Profile) -> Train | Stop:
    """Between two cycles: stop at a limit, or start the next cycle."""
    if profile.run.until and last.validations and (ending := goal_ending(last, parse_goal(profile.run.until))):
        return ending
    if last.verdict.endswith(":stop"):
        return Stop(last.evidence, RunState.STAGNANT, ExitCode.STAGNANT)
    if (ending := limit_reached(history, last, profile)) is not None:
        return ending
    first = history.step + 1
    return Train(
        cycle=last.cycle + 1,
        attempt=1,
        phase="train",
        first_step=first,
        end_step=first + profile.run.steps_per_cycle,
        reseed=history.reseeds + (1 if last.verdict.endswith(":reseed") else 0),
        reductions=history.reductions,
    )


def limit_reached(history: History, last: CycleFacts, profile: Profile) -> Stop | None:
    """The limit that ends the run after cycle `last`, regardless of its validation; None if there is none."""
    if profile.run.max_cycles and last.cycle >= profile.run.max_cycles:
        done = f"all {profile.run.max_cycles} cycles are" if profile.run.max_cycles > 1 else "the one cycle is"
        return Stop(f"{done} done", RunState.FINISHED, ExitCode.OK)
    limit_s = profile.run.max_hours * 3600
    if limit_s and history.seeding_s + history.training_s >= limit_s:
        return Stop(f"{duration(limit_s)} of seeding and training have passed", RunState.FINISHED, ExitCode.OK)
    if "train" not in profile.run.phases:
        return Stop(
            f"seeding is done: {profile.azr.seed_tasks} tasks of each kind; run --full-pipeline continues",
            RunState.STOPPED,
            ExitCode.OK,
        )
    return None


def followers_of(action: Train | Validate, history: History, profile: Profile) -> int:
    """How many workers may follow this attempt, so that standbys are worth starting: after training one that validates,
    or goes on if the active one dies, and one for the next cycle. (pure)"""
    current = history.current
    if current is None:
        return 1
    goes_on = limit_reached(history, current, profile) is None
    if isinstance(action, Validate):
        return int(goes_on)
    return max(1, validation_is_due(current, profile) + goes_on)


def expected_after(history: History, profile: Profile) -> Train | None:
    """The attempt that follows the cycle under validation if its result changes nothing. None: the run ends. (pure)"""
    if history.current is None:
        return None
    following = after_cycle(history, replace(history.current, verdict="", validations=()), profile)
    return following if isinstance(following, Train) else None


def expected_after_training(action: Train, history: History, profile: Profile) -> Train | None:
    """The attempt that follows the cycle in training if that comes to its end and its result changes nothing. None: the
    run ends, or there is no checkpoint yet with which to load. (pure)"""
    following = expected_after(history, profile)
    if following is None or history.head is None:
        return None
    return replace(following, first_step=action.end_step, end_step=action.end_step + profile.run.steps_per_cycle)


def ending_as_asked(unsaved: AttemptFacts | None, head_step: int) -> Stop:
    """The end of a run that somebody stopped. unsaved: an attempt that failed when it was to save its steps. (pure)"""
    if unsaved is None:
        return Stop("asked to stop", RunState.STOPPED, ExitCode.OK)
    known = {code.value for code in ExitCode}
    code = ExitCode(unsaved.exit_code) if unsaved.exit_code in known - {ExitCode.OK} else ExitCode.INTERNAL
    steps = f"steps {head_step + 1} to {unsaved.step_reached}"
    why, _, advice = unsaved.message.partition("\n")
    return Stop(
        f"asked to stop, but {steps} could not be saved: {why or unsaved.failure}", RunState.FAILED, code, advice
    )


def goal_ending(last: CycleFacts, goal: Goal) -> Stop | None:
    """The stop if the goal is reached, or if no validation reports its score; otherwise None."""
    score = score_of(goal, last.validations)
    if score is None:
        names = ", ".join(names_of(last.validations))
        return Stop(
            f"run.until = {goal} names a score that no validation has",
            RunState.FAILED,
            ExitCode.INPUT,
            f"there are: {names}",
        )
    if goal.is_met_by(score):
        return Stop(f"{goal} is reached: {score:.3f} in cycle {last.cycle}", RunState.FINISHED, ExitCode.OK)
    return None


def validation_is_due(cycle: CycleFacts, profile: Profile) -> bool:
    if not worker_kind_of(profile).validates:
        return False
    last = bool(profile.run.max_cycles) and cycle.cycle >= profile.run.max_cycles
    return cycle.cycle % profile.validation.every == 0 or last or cycle.exhausted


def asks_all_problems(history: History, profile: Profile) -> bool | None:
    """Whether validations use every problem of their suites from now on; None if it is too early to tell.

    Decided once, from the first training cycle and the validation before it, which used `examples_per_task`.
    """
    if history.all_problems is not None:
        return history.all_problems
    cost, current, within = history.validation_cost, history.current, profile.validation.all_within
    if within == 0:
        return False
    if cost is None or current is None or current.phase != "train" or current.train_s <= 0:
        return None
    if cost.available <= cost.asked:
        return False
    return cost.seconds / cost.asked * cost.available < within * current.train_s * profile.validation.every


def reductions(history: History, failures: list[AttemptFacts]) -> int:
    """How often to halve the rollout batch: once more after each attempt that ran out of CUDA memory."""
    out_of_memory = bool(failures) and failures[-1].failure == ExitCode.CUDA_OOM.name
    return history.reductions + (1 if out_of_memory else 0)


def crash_loop(failures: list[AttemptFacts], retry: Retry) -> Stop | None:
    """The stop if retrying is pointless; None to retry. failures: since the last progress, oldest first, not empty."""
    last = failures[-1]
    where = f"cycle {last.cycle}, {last.role} attempt {last.attempt}, step {last.step_reached + 1}"
    if last.exit_code in FINAL_CODES:
        what, _, advice = last.message.partition("\n")  # the message is the result's error, a newline and its advice
        return Stop(f"{what or last.failure} ({where})", RunState.FAILED, ExitCode(last.exit_code or 0), advice)
    if last.failure == Cause.IMPOSSIBLE:
        return Stop(f"{last.message} ({where})", RunState.FAILED, ExitCode.CLUSTER, ADVICE[Cause.IMPOSSIBLE])
    same = 0
    for failure in reversed(failures):
        if (failure.failure, failure.step_reached, failure.role) != (last.failure, last.step_reached, last.role):
            break
        same += 1
    if same >= retry.max_same_failure:
        return Stop(
            f"{same} attempts in a row ended in {last.failure} at the same step ({where})",
            RunState.FAILED,
            _code_of(last),
            ADVICE.get(last.failure, ADVICE[""]),
        )
    if len(failures) >= retry.max_without_progress:
        return Stop(
            f"{len(failures)} attempts in a row made no new checkpoint; the last failed with {last.failure} ({where})",
            RunState.FAILED,
            _code_of(last),
            ADVICE.get(last.failure, ADVICE[""]),
        )
    return None


def _code_of(last: AttemptFacts) -> ExitCode:
    """GPU (72) stays as it is; any other repeated failure is a crash loop."""
    return ExitCode.GPU if last.exit_code == ExitCode.GPU else ExitCode.INTERNAL


ADVICE = {
    ExitCode.CUDA_OOM.name: "lower sampling.max_completion_tokens or optimizer.micro_batch_size",
    ExitCode.NOT_FINITE.name: "lower optimizer.learning_rate; the rollouts of the step are in evidence/",
    ExitCode.RANK.name: "read rank-1.log and its like in the attempt's directory, or go on with --set run.gpus=1",
    Cause.TIME_LIMIT: "raise launch.time_limit_minutes: no job had the time for one step and its checkpoint",
    Cause.LAUNCH: "read the attempt's slurm-*.log, or `ray job logs`, and: python -m orchestrator doctor --cluster",
    Cause.IMPOSSIBLE: "sinfo; correct [launch] or run.hosts, then repeat the command",
    Cause.HOST_OOM: "lower optimizer.micro_batch_size or sandbox.jobs, free memory, or raise launch.memory_gb",
    "": "read the end of worker.log in the attempt's directory",
}


def backoff_left(failures: list[AttemptFacts], retry: Retry, run_id: str, now: float) -> float:
    """Seconds until the next attempt may start. Doubles with each failure; 0 after a single kill.

    Adds +-20 % of jitter, which depends only on (run, failure), so that runs on one machine do not retry in step.
    """
    last = failures[-1]
    is_from_outside = last.exit_code == ExitCode.GPU or last.failure == KILLED
    if last.failure == Cause.TIME_LIMIT or (is_from_outside and len(failures) == 1):
        return 0.0  # a kill or a CUDA context lost in suspend is a normal retry, and so is the end of a job's time
    draw = hashlib.sha256(f"{run_id}/{last.token}".encode()).digest()[0] / 255
    delay: float = min(retry.backoff_s * 2.0 ** (len(failures) - 1), retry.backoff_max_s) * (0.8 + 0.4 * draw)
    # Clamped: if the clock was set back, `ended_at` lies in the future, and we must not wait for it.
    return max(0.0, min(delay, last.ended_at + delay - now))
