"""One cycle of training by verl: a job does the steps, its lines become our events, its files our checkpoints.

verl decides nothing that lasts. It writes the files of a step where it is told; they are moved into a checkpoint of
ours, hashed and renamed, and only then does anybody hear of it.
"""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state import event_kinds
from state.registry import Registry
from workers.contract import Outcome, Result
from workers.cycle.progress import Progress
from workers.cycle.saving import Saver, open_head, versions
from workers.models.load import Tokenizer
from workers.runtime import Attempt
from workers.suites.answer_formats import format_of_run
from workers.verl import held_out, preparing, signals
from workers.verl.check import check
from workers.verl.code_server import CodeServer
from workers.verl.held_out import HeldOut
from workers.verl.job import Job
from workers.verl.metrics import Line, step_metrics, steps
from workers.verl.preparing import STEP_FOLDER
from workers.verl.settings import Work
from workers.verl.tail import Tail
from workers.verl.tasks import training_problems, training_rows, write_rows
from workers.verl.verdicts import Verdicts

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
    with attempt.stage("loading"):
        cycle.load()
    outcome = cycle.run_steps() if cycle.has_steps else cycle.seed()
    cycle.answer_all()
    return Result(
        token=attempt.spec.token,
        role="train",
        outcome=outcome,
        exit_code=ExitCode.OK,
        last_step=cycle.progress.step,
        checkpoint=attempt.saved,
    )


class Cycle:
    """State of the story: where it is, and what was asked of it."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.spec, self.profile = attempt, attempt.spec, attempt.profile
        self.progress = Progress()
        self.requests = attempt.control.requests
        self.waiting: list[int] = []
        """Ids of requests for a checkpoint that is not there yet."""
        self.head: Path | None = None
        self.ready: Path | None = None
        """Folder with verl's files of a step, for the checkpoint that is written now."""
        self.held_out: HeldOut
        self.answers: list[str] | None = None
        """To the held-out problems, by the weights of that step."""
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
        """Refuse what cannot work, before anything is started; then read how far the head is."""
        check(self.profile)
        opened = open_head(self.attempt.run, self.spec.run_id, self.spec.head)
        if opened is None:
            return
        self.head = opened[0]
        preparing.read_layout(self.head)
        self.progress.load(self.head / self.progress.filename)

    def seed(self) -> Outcome:
        """The checkpoint of step 0: the model as the profile names it, by its name."""
        with preparing.model_folder(self.profile, self.attempt.dir.path / "verl") as model:
            self.write_problems(model)
        self.saver.save(self.progress.step)
        return Outcome.DONE

    def write_problems(self, model: Path) -> Path:
        """The parquet file of the attempt; the first attempt of a run says what is in it."""
        from workers.problems.reader import summary

        answer_format, tokenizer = format_of_run(self.profile, model), Tokenizer(model)
        problems = training_problems(self.profile, answer_format, tokenizer)
        if self.head is None:
            self.attempt.event(event_kinds.PROBLEMS, text=summary(problems), digest=problems.digest)
            self.attempt.event(
                event_kinds.PATH, text=f"verl with {self.profile.verl.strategy} computes it; {EXACTNESS}"
            )
        path = self.attempt.dir.path / "verl" / "train.parquet"
        path.parent.mkdir(exist_ok=True)
        write_rows(path, training_rows(problems, answer_format))
        return path

    def run_steps(self) -> Outcome:
        with preparing.model_folder(self.profile, self.attempt.dir.path / "verl") as model:
            problems = self.write_problems(model)
            self.held_out = HeldOut(self.profile, held_out.load(self.profile), model)
            work = preparing.begin(
                self.attempt,
                model,
                self.head,
                train=problems,
                validation=self.held_out.write(problems.with_name("held_out.parquet")),
                last_step=self.last_step,
            )
            with self.code_server(work) as server, Job(self.profile, work) as job:
                job.begin()
                return self.follow(job, server)

    def code_server(self, work: Work) -> AbstractContextManager[CodeServer | None]:
        """What judges programs while the job runs; None where the profile names nothing."""
        if not self.profile.verl.code_server:
            return nullcontext()
        return CodeServer(self.profile, work.folder, work.control)

    def follow(self, job: Job, server: CodeServer | None) -> Outcome:
        """Until the job has ended. Raises LonghaulError where that was not asked for."""
        work, tail = job.work, Tail(job.work.metrics)
        verdicts = Verdicts(work.control)
        began, is_asked_to_stop = time.monotonic(), False
        while True:
            exit_code = job.poll()  # first: what it wrote before its end is read after this
            for line in steps(tail):
                self.take_step(line)
                self.say_lost(verdicts, line.step)
                if line.step < self.last_step:
                    self.take_files(work)
            if exit_code is not None:
                self.take_files(work)  # the last: the answers to held-out problems are whole once verl has ended
                break
            self.refuse_lost(verdicts, server)
            if self.requests.stop.is_set() and not is_asked_to_stop:
                if not self.has_begun(work):
                    return Outcome.STOPPED  # nothing is lost: no step has begun
                is_asked_to_stop = True
                signals.ask(work.control, signals.STOP)
            self.forward_requests(work)
            self.say_where(work, began)
            time.sleep(LOOK_EVERY_S)
        if exit_code == 0 and self.saver.step == self.progress.step == self.last_step:
            return Outcome.DONE
        if exit_code == 0 and is_asked_to_stop and self.saver.step == self.progress.step:
            return Outcome.STOPPED
        self.refuse_lost(verdicts, server)  # before the engine's words: a job whose rollouts are all lost ends by them
        raise self.failed(job, exit_code)

    def refuse_lost(self, verdicts: Verdicts, server: CodeServer | None) -> None:
        """Raises LonghaulError (CODE_SERVER) where too many programs were not judged, or nobody is there to judge."""
        if server is None:
            return
        server.refuse_end(self.kept)
        verdicts.read()
        if reason := verdicts.stop_reason:
            raise LonghaulError(reason, kept=self.kept, next_command=server.advice, exit_code=ExitCode.CODE_SERVER)

    def say_lost(self, verdicts: Verdicts, step: int) -> None:
        if lost := verdicts.take_lost():
            said = ", ".join(f"{number} {kind}" for kind, number in lost.most_common())
            self.attempt.warn(
                f"{lost.total()} rollouts by step {step} are left out: the code server gave no verdict ({said})"
            )

    def has_begun(self, work: Work) -> bool:
        return signals.told(work.control)[0] != signals.NO_STEP

    def say_where(self, work: Work, began: float) -> None:
        """Tell the master, whose deadlines are measured from here; the start has one of its own."""
        step, stage = signals.told(work.control)
        self.attempt.at(max(step, self.progress.step), stage or "starting")
        if step != signals.NO_STEP:
            return
        if time.monotonic() - began > self.profile.verl.start_s:
            raise LonghaulError(
                f"verl did not begin a step within {self.profile.verl.start_s:g} s (verl.start_s)",
                kept="the head, unchanged",
                next_command=f"tail -50 {self.attempt.run.relative(work.log)}",
                exit_code=ExitCode.ENGINE,
            )

    def forward_requests(self, work: Work) -> None:
        new = self.requests.checkpoints_wanted()
        if new:
            self.waiting += new
            signals.ask(work.control, signals.SAVE)

    def take_step(self, line: Line) -> None:
        """A finished step. Its row comes before its checkpoint, always."""
        if line.step <= self.progress.step:
            return
        self.attempt.at(line.step, "report")
        metrics = step_metrics(self.profile, line.data)
        self.progress.step = line.step
        self.progress.tokens += int(metrics["tokens"])
        self.attempt.event(event_kinds.STEP, oom_retries=0, **metrics)

    def take_files(self, work: Work) -> None:
        """verl's files of the step that was told last become a checkpoint, if there are any, while verl goes on."""
        step = self.progress.step
        if step == self.saver.step or step not in signals.saved(work.control):
            return
        self.ready = work.checkpoints / f"{STEP_FOLDER}{step}"
        with suppress(ValueError):  # there are none, unless it was the last step
            self.answers = self.held_out.answers_in(work.answers / f"{step}.jsonl")
        asked, self.waiting = self.waiting, []
        self.saver.save(step)
        shutil.rmtree(self.ready, ignore_errors=True)
        self.ready = None
        self.saver.answer(asked)

    def write_files(self, directory: Path) -> None:
        """Moved, not copied: shards of a large model would take minutes and as much room again."""
        if self.ready is not None:
            for path in sorted(self.ready.iterdir()):
                shutil.move(path, directory / path.name)  # a rename on one file system
        if self.answers is not None:
            self.held_out.keep(self.answers, directory)
        preparing.write_layout(directory, preparing.layout_of(self.profile, is_trained=self.ready is not None))

    def answer_all(self) -> None:
        self.saver.answer(self.waiting + self.requests.checkpoints_wanted() + self.requests.stops_wanted())

    def failed(self, job: Job, exit_code: int) -> LonghaulError:
        if exit_code == 0:
            what = f"verl ended after step {self.progress.step}, and step {self.last_step} was asked for"
            code, advice = ExitCode.ENGINE, f"tail -50 {self.attempt.run.relative(job.work.log)}"
        else:
            end = job.ended(exit_code)
            what, code, advice = f"verl ended with {end.what}", end.code, end.advice
        return LonghaulError(
            what,
            kept=self.kept,
            next_command=advice,
            exit_code=code,
        )

    @property
    def kept(self) -> str:
        """For the message of an error."""
        return f"the checkpoint of step {max(0, self.saver.step)}"
