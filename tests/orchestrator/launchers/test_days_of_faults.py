"""Days of a run on a cluster whose jobs end in every way of the table, by a clock that nobody waits for.

What is decided is decided by the product: what an end means, which nodes are left out, what comes next and when. The
cluster, the disk and the workers are a few lines here.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from orchestrator.commit import unfinished
from orchestrator.launchers.job_end import Cause, End, Left, Seen, meaning
from orchestrator.launchers.slurm import Node, Slurm
from orchestrator.nodes import avoided
from orchestrator.schedule import Commit, Stop, Train, Validate, Wait, next_action
from orchestrator.supervise import failure_class
from profiles.errors import ExitCode, LonghaulError
from profiles.launch import Launch
from profiles.schema import Profile, Run
from state.history import AttemptFacts, CheckpointFacts, CycleFacts, History, NodeFailure
from state.states import AttemptState, CycleState, RunState
from tests.orchestrator.launchers.test_job_end import DONE, NOTHING, ROWS, SAVED
from workers.contract import Outcome

HOUR = 3600.0
START_S, STEP_S, SAVE_S, VALIDATION_S = 60.0, 15.0, 3.0, 60.0
CHECKPOINT_EVERY = 10
PERSON_S = 300.0
"""Until somebody who cancelled the job types `run` again."""
EVERY_END = [cast(tuple[Left, Seen], row.values[:2]) for row in ROWS]
NODE_ENDS = [row for row in EVERY_END if meaning(*row).cause == Cause.NODE]


class OfPartition(Slurm):
    """Slurm, as far as it says which nodes to leave out."""

    def __init__(self, profile: Profile, nodes: list[str]) -> None:
        super().__init__(profile)
        self.nodes = nodes

    def partition(self) -> list[Node]:
        return [Node(name, "main", "idle", "infinite") for name in self.nodes]


@dataclass
class Job:
    """What a job came to. seconds: it took. saved: steps of its checkpoints, oldest first."""

    left: Left
    seen: Seen
    seconds: float
    saved: list[int] = field(default_factory=list)


class Days:
    """One run, a fault every `every_s` seconds."""

    def __init__(self, seed: int, every_s: float, ends: list[tuple[Left, Seen]], *, nodes: int, hosts: int) -> None:
        self.draw, self.every_s, self.ends, self.hosts = random.Random(seed), every_s, ends, hosts
        self.profile = Profile(name="days", run=Run(steps_per_cycle=800), launch=Launch(launcher="slurm"))
        self.nodes = [f"n{number:03d}" for number in range(nodes)]
        self.launcher = OfPartition(self.profile, self.nodes)
        self.now = 0.0
        self.fault_at = every_s
        self.at_start: tuple[Left, Seen] | None = None
        """The fault that strikes the start of the next job."""
        seeded = CycleFacts(0, "seed", CycleState.COMMITTED, 1, 1)
        head = CheckpointFacts("c0", None, 0, 0, "s0", "d", 1)
        self.history = History("run", "days", RunState.RUNNING, head=head, current=seeded)
        self.node_failures: list[NodeFailure] = []
        self.submitted: Counter[tuple[int, str, int]] = Counter()
        self.most_left_out = 0
        self.causes: Counter[str] = Counter()
        self.stopped: Stop | LonghaulError | None = None

    def run(self, hours: float) -> None:
        waited = ""
        while self.now < hours * HOUR and self.stopped is None:
            match next_action(self.history, self.profile, self.now, waited):
                case Wait(seconds, _, failure):
                    self.now, waited = self.now + seconds, failure
                case Commit():
                    self.change_cycle(state=CycleState.COMMITTED)
                case Stop() as stop:
                    self.stopped = stop
                case Train() | Validate() as action:
                    try:
                        self.attempt(action)
                    except LonghaulError as error:
                        self.stopped = error

    def change_cycle(self, **changes: Any) -> None:
        assert self.history.current is not None
        self.history = replace(self.history, current=replace(self.history.current, **changes))

    def attempt(self, action: Train | Validate) -> None:
        """Submit one job, let it run to its end, and record what the product makes of it."""
        role = "train" if isinstance(action, Train) else "validate"
        self.submitted[action.cycle, role, action.attempt] += 1
        if isinstance(action, Train):
            assert action.first_step == self.history.step + 1, "goes on right behind the newest checkpoint"
            if self.history.current is None or self.history.current.cycle != action.cycle:
                current = CycleFacts(
                    action.cycle, action.phase, CycleState.TRAINING, action.first_step, action.end_step
                )
                self.history = replace(self.history, current=current, last_attempt={})
        avoid = avoided(self.node_failures, self.now)
        out = self.launcher._excluded(avoid.failed, avoid.slow, self.hosts)
        self.most_left_out = max(self.most_left_out, len(out))
        nodes = tuple(self.draw.sample([node for node in self.nodes if node not in out], self.hosts))
        began = self.now
        job = self.job(action)
        self.now += job.seconds
        for step in job.saved:
            assert step > self.history.step
            facts = CheckpointFacts(f"c{step}", None, action.cycle, step, f"s{step}", "d", 1)
            self.history = replace(self.history, head=facts)
        seen = replace(job.seen, nodes=nodes, failed_nodes=nodes[-1:] if job.seen.failed_nodes else ())
        end = meaning(job.left, seen)
        self.causes[end.cause or ("failed" if end.exit_code else "well")] += 1
        self.node_failures += [
            NodeFailure(node, end.text, action.cycle, action.attempt, self.now) for node in end.nodes
        ]
        self.close(action, role, job, end, began)
        if end.cause == Cause.CANCELLED:
            self.now += PERSON_S

    def close(self, action: Train | Validate, role: str, job: Job, end: End, began: float) -> None:
        """As `Ledger.close` does: what is on disk outranks the exit code."""
        result = job.left.result
        is_done = isinstance(action, Train) and self.history.step >= action.end_step - 1
        is_done |= isinstance(action, Validate) and result is not None and result.outcome == Outcome.DONE
        state, failure = AttemptState.SUCCEEDED, ""
        if not is_done and result is not None and result.outcome == Outcome.STOPPED:
            state = AttemptState.STOPPED
        elif not is_done:
            ended = unfinished(result, failure_class(end.exit_code, hung="", oom_killed=False, cause=end.cause), False)
            state, failure = ended.state, ended.failure
        token = f"{action.cycle}-{role}-{action.attempt}"
        facts = AttemptFacts(
            action.cycle, role, action.attempt, token, state, 0, self.history.step, bool(job.saved), end.exit_code,
            failure, started_at=began, ended_at=self.now,
        )  # fmt: skip
        kept = () if facts.progressed else self.history.failures
        failures = (*kept, facts) if state == AttemptState.FAILED else ()
        last = {**self.history.last_attempt, role: action.attempt}
        self.history = replace(self.history, failures=failures, last_attempt=last)
        if is_done:
            self.change_cycle(state=CycleState.TRAINED if role == "train" else CycleState.VALIDATED)

    # --- the cluster ---------------------------------------------------------------------------------------------

    def job(self, action: Train | Validate) -> Job:
        """What becomes of a job that is submitted now."""
        if self.at_start is not None:
            (left, seen), self.at_start = self.at_start, None
            return Job(left, seen, seconds=5.0)
        first, end = (action.first_step, action.end_step) if isinstance(action, Train) else (0, 1)
        saved: list[int] = []
        seconds, final = START_S, Seen("COMPLETED")
        for step in range(first, end):
            is_saved = isinstance(action, Train) and (step % CHECKPOINT_EVERY == 0 or step == end - 1)
            cost = STEP_S + SAVE_S * is_saved if isinstance(action, Train) else VALIDATION_S
            while self.now + seconds + cost > self.fault_at:
                left, seen = self.draw.choice(self.ends)
                at = max(0.0, self.fault_at - self.now)
                self.fault_at += self.every_s * self.draw.uniform(0.5, 1.5)
                if not left.is_claimed:
                    self.at_start = left, seen
                elif left == DONE:
                    final = seen  # it strikes once the work is done
                elif left == SAVED and isinstance(action, Train) and at > START_S:
                    new = [] if step - 1 in (first - 1, *saved) else [step - 1]
                    return Job(left, seen, at + SAVE_S, [*saved, *new])
                else:
                    return Job(NOTHING if left == SAVED else left, seen, at, saved)
            seconds += cost
            saved += [step] if is_saved else []
        return Job(DONE, final, seconds, saved)

    @property
    def goodput(self) -> float:
        """Share of the time that went into steps that are in the head."""
        return self.history.step * STEP_S / self.now


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_of_72_hours_with_a_fault_every_20_minutes_most_go_into_steps_that_stay(seed: int, hosts: int) -> None:
    days = Days(seed, 20 * 60, EVERY_END, nodes=256, hosts=hosts)
    days.run(72)
    assert days.stopped is None
    assert set(days.causes) >= {"well", "failed", Cause.NODE, Cause.TIME_LIMIT, Cause.PREEMPTED, Cause.LAUNCH}
    assert days.causes.total() > 150
    assert days.goodput >= 0.85, days.goodput
    assert max(days.submitted.values()) == 1, "no attempt is submitted twice"
    assert days.most_left_out <= 256 // 4


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_fail_faster_than_any_checkpoint_never_spend_the_crash_budget(seed: int) -> None:
    """More than the quarter has failed at last: the run stops for that reason, and says so."""
    days = Days(seed, 40.0, NODE_ENDS, nodes=64, hosts=1)
    days.run(72)
    assert isinstance(days.stopped, LonghaulError) and days.stopped.exit_code == ExitCode.NODE
    assert "17 of the 64 nodes have failed within a week" in days.stopped.what
    assert days.most_left_out == 16
