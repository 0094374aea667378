"""The one cycle of a run by open-instruct: a job does the steps, its log becomes our events, its files our checkpoints.

The program cannot be asked for anything. It saves after every `checkpoint_state_freq` steps of its YAML, and a stop
waits for the next of those. What lasts is decided here: files are moved into a checkpoint of ours, hashed and renamed,
and only then does anybody hear of it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.open_instruct.demands import batch_of, learners_of
from profiles.open_instruct.options import UPSTREAM_COMMIT
from state import event_kinds, python
from state.registry import Registry
from workers.contract import Outcome, Result
from workers.cycle.progress import Progress
from workers.cycle.saving import Saver, open_head, versions
from workers.external.ends import end_of_log
from workers.external.processes import Processes, make_spool, ray_address, secured
from workers.open_instruct import checkpoints
from workers.open_instruct.check import check
from workers.open_instruct.checkpoints import MODEL, Layout
from workers.open_instruct.command import ENTRY, environment, options, own_options
from workers.open_instruct.ends import end_of
from workers.open_instruct.log import Saved, Step, StepMetrics, Tail
from workers.runtime import Attempt

log = logging.getLogger("worker")

LOOK_EVERY_S = 0.2
EXACTNESS = (
    "resumes are exact in state, not bit for bit: weights, moments, schedule and the place in the data are restored, "
    "and rollouts are drawn anew"
)


def train(attempt: Attempt) -> Result:
    """The story of a cycle."""
    attempt.at(attempt.spec.first_step - 1, "loading")
    attempt.event(event_kinds.STARTED, versions=versions())
    cycle = Cycle(attempt)
    cycle.load()
    outcome = cycle.run_steps() if cycle.has_steps else cycle.seed()
    cycle.answer_all()
    return Result(
        token=attempt.spec.token,
        role="train",
        outcome=outcome,
        exit_code=ExitCode.OK,
        last_step=cycle.saver.step,
        checkpoint=attempt.saved,
    )


class Cycle:
    """State of the story: where it is, and what was asked of it."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.spec, self.profile = attempt, attempt.spec, attempt.profile
        self.setup = check(attempt.profile)
        self.learners = sum(learners_of(self.setup.settings))
        self.progress = Progress()
        self.requests = attempt.control.requests
        self.folder = attempt.dir.path / "open_instruct"
        self.state, self.output = self.folder / "state", self.folder / MODEL
        self.log = self.folder / "open_instruct.log"
        self.head: Path | None = None
        self.waiting: list[int] = []
        """Ids of requests for a checkpoint that is not there yet."""
        self.last_state: Path | None = None
        """Folder with the state of the last step, which waits for the model that belongs to it."""
        self.ready: tuple[Path | None, Path | None] = (None, None)
        """State and model for the checkpoint that is written now."""
        registry = Registry()
        registry.register(self.progress)
        self.saver = Saver(attempt, registry, self.write_files)

    @property
    def has_steps(self) -> bool:
        return self.spec.first_step < self.spec.end_step

    @property
    def last_step(self) -> int:
        return self.spec.end_step - 1

    def load(self) -> None:
        """Read how far the head is."""
        with self.attempt.stage("loading"):
            opened = open_head(self.attempt.run, self.spec.run_id, self.spec.head)
        if opened is not None:
            self.head = opened[0]
            self.progress.load(self.head / self.progress.filename)

    def seed(self) -> Outcome:
        """The checkpoint of step 0: the model as the YAML names it, by its name."""
        if self.head is None:
            self.attempt.event(event_kinds.PATH, text=f"open-instruct trains; {EXACTNESS}")
            if self.profile.open_instruct.commit != UPSTREAM_COMMIT:
                self.attempt.warn(f"options and log lines of open-instruct are known of {UPSTREAM_COMMIT} alone")
        self.saver.save(self.progress.step)
        return Outcome.DONE

    def run_steps(self) -> Outcome:
        address = ray_address(self.profile)
        self.folder.mkdir(exist_ok=True)
        for left in self.attempt.dir.path.parent.glob("*/open_instruct/state"):
            checkpoints.discard(left)  # of attempts that were killed
        checkpoints.prepare(self.state, self.head, self.learners)
        shutil.rmtree(self.output, ignore_errors=True)
        words = options(self.setup.settings, own_options(self.folder, self.state))
        (self.folder / "settings.txt").write_text("\n".join(words) + "\n")
        spool = "" if address else make_spool()
        tail = Tail(self.log)
        with Processes(self.log, spool) as job:
            self.attempt.at(self.progress.step, "starting")
            source = self.setup.source
            command = [str(source), str(self.setup.python), str(source / ENTRY), *words]
            whole = secured({**os.environ, **environment(spool)})
            job.start(python.command("workers.open_instruct.driver", *command), source, whole)
            outcome = self.follow(job, tail)
        checkpoints.discard(self.state)
        return outcome

    def follow(self, job: Processes, tail: Tail) -> Outcome:
        """Until the steps are done, or a stop has its checkpoint. Raises LonghaulError where the job ended before."""
        metrics = StepMetrics(batch_of(self.setup.settings))
        stop_by: float | None = None
        leave_by: float | None = None
        while True:
            exit_code = job.poll()  # first: what it wrote before its end is read after this
            for fact in tail.facts():
                self.take(fact, metrics)
            now = time.monotonic()
            model = checkpoints.finished_model(self.output) if self.progress.step == self.last_step else None
            if leave_by is None and model is not None:
                leave_by = now + self.profile.timeouts.checkpoint_s  # trackers send their last
            if exit_code is not None or (leave_by is not None and now > leave_by):
                break
            self.waiting += self.requests.checkpoints_wanted()
            if self.requests.stop.is_set() and leave_by is None:
                stop_by = stop_by or self.begin_to_stop(now)
                if self.may_stop(now, stop_by):
                    return Outcome.STOPPED
            time.sleep(LOOK_EVERY_S)
        if self.progress.step == self.last_step and (model or self.last_state):
            self.save(self.last_state, model)
            if model is None:
                self.attempt.warn("open-instruct ended before it had written the model; the checkpoint has its shards")
            return Outcome.DONE
        raise self.failed(exit_code)

    def begin_to_stop(self, now: float) -> float:
        """When a stop no longer waits, by the monotonic clock."""
        if self.unsaved:
            log.info("a stop waits for the next checkpoint of open-instruct; step %d is done", self.progress.step)
        return now + self.profile.open_instruct.stop_within_s

    def may_stop(self, now: float, stop_by: float) -> bool:
        """Whether nothing would be gained by waiting, or it was waited for long enough."""
        if not self.unsaved:
            return True
        if now < stop_by:
            return False
        limit = self.profile.open_instruct.stop_within_s
        self.attempt.warn(
            f"no checkpoint came within {limit:g} s of the stop (open_instruct.stop_within_s): "
            f"{self.unsaved} steps after step {max(0, self.saver.step)} are repeated"
        )
        return True

    @property
    def unsaved(self) -> int:
        """Steps that are done and in no checkpoint."""
        return self.progress.step - max(0, self.saver.step)

    def take(self, fact: Step | Saved, metrics: StepMetrics) -> None:
        """What the log told. Raises LonghaulError (ENGINE) where the job did not go on from the head."""
        match fact:
            case Step(number, _) if number < self.spec.first_step:
                raise LonghaulError(
                    f"open-instruct did step {number}, and the head is step {self.spec.first_step - 1}",
                    kept=f"the checkpoint of step {max(0, self.saver.step)}",
                    next_command=f"tail -50 {self.attempt.run.relative(self.log)}",
                    exit_code=ExitCode.ENGINE,
                )
            case Step(number, data) if self.progress.step < number <= self.last_step:
                self.take_step(number, metrics.of(data))
            case Saved(step) if max(self.progress.step, 1) <= step <= self.last_step and step > self.saver.step:
                self.progress.step = step
                self.take_state(step)

    def take_step(self, number: int, found: dict[str, float]) -> None:
        """A finished step. Its row comes before its checkpoint, always."""
        self.attempt.at(number, "report")
        self.progress.step = number
        self.progress.tokens += int(found["tokens"])
        self.attempt.event(event_kinds.STEP, oom_retries=0, **found)

    def take_state(self, step: int) -> None:
        """The program's files of a step become a checkpoint, while it goes on."""
        folder = checkpoints.oldest(self.state)
        if folder is None:
            return
        if lacks := checkpoints.missing(folder, self.learners):
            self.attempt.warn(f"{folder.name} of step {step} has {lacks}: it is no checkpoint")
            shutil.rmtree(folder, ignore_errors=True)
        elif step == self.last_step:
            self.last_state = folder
        else:
            self.save(folder, None)

    def save(self, state: Path | None, model: Path | None) -> None:
        self.ready = (state, model)
        asked, self.waiting = self.waiting, []
        self.saver.save(self.progress.step)
        self.saver.answer(asked)

    def write_files(self, directory: Path) -> None:
        state, model = self.ready
        if state is not None:
            checkpoints.take(state, directory)
        if model is not None:
            shutil.move(model, directory / MODEL)
        checkpoints.write_layout(
            directory,
            Layout(
                self.profile.open_instruct.commit,
                tag=state.name if state is not None else "",
                learners=self.learners,
                has_model=model is not None,
            ),
        )

    def answer_all(self) -> None:
        self.saver.answer(self.waiting + self.requests.checkpoints_wanted() + self.requests.stops_wanted())

    def failed(self, exit_code: int | None) -> LonghaulError:
        repeated = f"; {self.unsaved} steps are repeated" if self.unsaved else ""
        if not exit_code:
            what = f"open-instruct ended after step {self.progress.step} of {self.last_step}"
            code, advice = ExitCode.ENGINE, f"tail -50 {self.attempt.run.relative(self.log)}"
        else:
            end = end_of(exit_code, end_of_log(self.log))
            what, code, advice = f"open-instruct ended with {end.what}", end.code, end.advice
        return LonghaulError(
            what + repeated,
            kept=f"the checkpoint of step {max(0, self.saver.step)}",
            next_command=advice,
            exit_code=code,
        )
