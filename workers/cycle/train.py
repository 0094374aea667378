"""One cycle of training: load the head, do exactly its steps, checkpoint, and report how it ended.

The trainer defines what a step *is*. This module decides when to resume, persist, retry, save and stop.
"""

from __future__ import annotations

import logging
import resource
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.mismatch import bounds_of
from state import event_kinds
from state.checkpoint import Manifest
from state.crash import crash_point
from state.registry import Registry
from workers.contract import HELD, PAUSED, Outcome, Result, WorkerSpec
from workers.cycle import rollout_file
from workers.cycle.ahead import Ahead
from workers.cycle.cursor import Exhausted
from workers.cycle.mismatch import warning_of
from workers.cycle.progress import Progress
from workers.cycle.rollout_file import Header, Record
from workers.cycle.saving import Saver, open_head, versions
from workers.failures import is_out_of_memory, phase_of
from workers.memory.backoff import ROLLOUT, Sizes
from workers.memory.host import highest
from workers.runtime import Attempt, read_spec

log = logging.getLogger("worker")

MAX_NOT_FINITE = 3
"""After this many skipped updates in a row, the numbers will not recover by themselves."""

Value = TypeVar("Value")


class Interrupted(Exception):
    """Seeding was asked to stop early; the buffers are not complete."""


@dataclass(frozen=True)
class StepReport:
    """The result of an update. metrics: flat. examples: new valid tasks. finite: False if non-finite numbers made it
    skip the update or drop rollouts. sound: False if all rollouts were dropped; such weights never become a
    checkpoint."""

    metrics: dict[str, float]
    tokens: int = 0
    examples: Sequence[Record] = ()
    finite: bool = True
    sound: bool = True
    warnings: Sequence[str] = field(default=())


class Trainer(Protocol):
    """The thing being trained. Resume is exact only if the registry holds all state that outlives a step."""

    static_files: ClassVar[Collection[str]]
    """Names of the files that `write_static` may write."""

    def build(self, head: Path | None) -> None:
        """Create every object. Weights come from `head` (a verified checkpoint), or from the profile if it is None."""

    def registry(self, progress: Progress) -> Registry:
        """All stateful objects, `progress` among them."""

    def probe(self) -> Mapping[str, Any]:
        """Check that the model is computed as transformers does; returns the findings. Refuses otherwise. Changes no
        state."""

    def seed(self, stop_asked: Callable[[], bool]) -> Sequence[Record]:
        """Fill empty buffers before the first step; returns the tasks found. Raises Interrupted if asked to stop."""

    def reseed(self) -> dict[str, float]:
        """Consolidate the buffers and restart self-play from them; returns counts of what was kept and dropped."""

    def worst_case(self, *, first_attempt: bool) -> dict[str, float]:
        """Run the largest shapes without changing state; returns memory figures, empty if there was no need."""

    @property
    def sizes(self) -> Sizes:
        """The sizes that the profile asks for; read once, after `build`."""

    def resize(self, sizes: Sizes) -> None:
        """Use these sizes from now on, and free cached device memory. Changes results only by rounding."""

    def collect(self, step: int) -> list[Record]:
        """Rollouts of `step` with their rewards, as JSON records. Changes no state. May raise Exhausted."""

    def update(self, step: int, records: Sequence[Record]) -> StepReport:
        """Train on the records. After an out-of-memory error, a second call continues where the first stopped."""

    def write_static(self, directory: Path) -> None:
        """Write the files besides state with which other tools load a checkpoint: config, tokenizer."""


@runtime_checkable
class Overlapping(Protocol):
    """A `Trainer` that can draw a step's rollouts beside the update of the step before."""

    def draw_beside(self, ahead: Ahead) -> None:
        """Called once, after `build`. From then on `update` calls `ahead.begin` when all but its gradient is computed,
        and `ahead.before_change` before any weight changes. Refuses if its rollouts cannot be drawn from a thread."""

    def collect_after(self, step: int, records: Sequence[Record]) -> Callable[[], list[Record]]:
        """A function that collects the rollouts of `step`, which follows the one with `records`, with the weights of
        its time. Other threads may call it, while `update` computes a gradient, and after that where
        `ahead.reads_copy`. Changes no state. May raise Exhausted."""


def train(attempt: Attempt, trainer: Trainer) -> Result:
    """Run one cycle."""
    cycle = Cycle(attempt, trainer)
    with cycle.ahead:
        cycle.load()
        cycle.rehearse()
        try:
            cycle.prepare_buffers()
            outcome = cycle.run_steps()
        except Interrupted:
            outcome = Outcome.STOPPED
        cycle.save_end(outcome)
    return cycle.result(outcome)


class Cycle:
    """State of a cycle: its position, and whether it was asked to save or stop."""

    def __init__(self, attempt: Attempt, trainer: Trainer) -> None:
        self.attempt, self.trainer, self.spec = attempt, trainer, attempt.spec
        self.progress = Progress()
        self.requests = attempt.control.requests
        self.ahead = Ahead(attempt.stage)
        self.asked: Sizes | None = None
        """The sizes that the profile asks for."""
        self.is_seeded = False
        self.is_sound = True
        """Whether the current weights gave finite numbers. Never stored, because only such weights are saved."""
        self.registry: Registry
        self.saver: Saver

    def load(self) -> None:
        """Verify the head, build the trainer, restore every registered object, and probe the result. A worker that
        loads ahead does so with the head of that moment, and later restores the one that it trains from."""
        self.attempt.at(self.spec.first_step - 1, "loading")
        self.attempt.event(event_kinds.STARTED, versions=versions())
        with self.attempt.stage("loading"):
            head = open_head(self.attempt.run, self.spec.run_id, self.spec.head)
            self.trainer.build(head[0] if head else None)
            self.registry = self.trainer.registry(self.progress)
            if self.attempt.profile.run.overlap:
                assert isinstance(self.trainer, Overlapping)  # a rule of the profile
                self.trainer.draw_beside(self.ahead)
                self.registry.register(self.ahead)
            self.restore(head)
            if path := self.with_less_memory(self.trainer.probe, ROLLOUT):
                self.attempt.event(event_kinds.PATH, **path)
        if self.requests.waits_for_head:
            self.take_head()
        if self.progress.step != self.spec.first_step - 1:
            raise LonghaulError(
                f"the head holds step {self.progress.step}, but the cycle begins at step {self.spec.first_step}",
                kept="the head, unchanged",
                next_command="python -m orchestrator status",
                exit_code=ExitCode.SPEC,
            )

    def restore(self, head: tuple[Path, Manifest] | None) -> None:
        """All state as it is in `head`, whatever it was before."""
        if head is not None:
            self.registry.load(head[0], head[1].files, static=self.trainer.static_files)
        self.saver = Saver(self.attempt, self.registry, self.trainer.write_static)
        if self.asked is None:
            self.asked = self.trainer.sizes
        self.trainer.resize(self.progress.backoff.begin(self.asked))

    def take_head(self) -> None:
        """Loaded while the cycle before trains: wait until it has ended, and restore its last checkpoint."""
        assert self.progress.backoff.now is not None
        self.trainer.resize(self.progress.backoff.now)  # frees what the probe took
        self.attempt.at(self.spec.first_step - 1, HELD)
        crash_point("worker.loaded")
        self.spec = self.attempt.spec = self.named_spec()
        self.attempt.saved = self.spec.head
        self.requests.waits_for_head = False
        self.attempt.at(self.spec.first_step - 1, "loading")
        with self.attempt.stage("loading"):
            self.restore(open_head(self.attempt.run, self.spec.run_id, self.spec.head))

    def named_spec(self) -> WorkerSpec:
        """The spec with the head to train from. Raises LonghaulError (SPEC) if it differs in anything else: the model
        was loaded for another attempt."""
        named = self.requests.head.get()
        spec = read_spec(Path(named.path), self.spec.token) if named is not None else None
        if spec is None or replace(spec, head=self.spec.head) != self.spec:
            raise LonghaulError(
                "the model was loaded for an attempt that is not asked for",
                kept="everything; the attempt has not begun",
                next_command="python -m orchestrator run",
                exit_code=ExitCode.SPEC,
            )
        return spec

    def rehearse(self) -> None:
        """Run the largest shapes first, so that an out-of-memory error shows in the first minute."""
        first = self.spec.head is None
        with self.attempt.stage("worst_case"):
            memory = self.with_less_memory(lambda: self.trainer.worst_case(first_attempt=first), "update")
        if memory:
            self.attempt.event(event_kinds.MEMORY, **memory)

    def prepare_buffers(self) -> None:
        """Seed a new run; consolidate if the master decided to reseed."""
        self.is_seeded = self.spec.head is not None
        if not self.is_seeded:
            with self.attempt.stage("seeding"):
                found = self.with_less_memory(lambda: self.trainer.seed(self.requests.stop.is_set), ROLLOUT)
            if found:
                self.attempt.event(event_kinds.EXAMPLES, tasks=list(found))
            self.is_seeded = True
        if self.spec.reseed > self.progress.reseeds:
            with self.attempt.stage("reseeding"):
                kept = self.trainer.reseed()
            self.progress.reseeds = self.spec.reseed
            self.attempt.event(event_kinds.RESEED, **kept)
        self.attempt.take_seconds()

    def run_steps(self) -> Outcome:
        """The cycle's remaining steps, unless stopped or out of data."""
        self.edge()
        while self.progress.step + 1 < self.spec.end_step:
            self.hold()
            if self.requests.stop.is_set():
                return Outcome.STOPPED
            try:
                self.one_step(self.progress.step + 1)
            except Exhausted as end:
                self.attempt.event(event_kinds.EXHAUSTED, text=str(end))
                return Outcome.EXHAUSTED
            self.edge()
        assert self.progress.step == self.spec.end_step - 1, (self.progress.step, self.spec.end_step)
        return Outcome.DONE

    def hold(self) -> None:
        """While the run is paused: wait between two steps with everything in memory, and save when asked.

        Too long a pause ends as a stop does, and gives the GPU back: also if no master lives that could ask for it.
        """
        until = time.monotonic() + self.attempt.profile.timeouts.paused_s
        while self.requests.is_paused and not self.requests.stop.is_set():
            left = until - time.monotonic()
            if left <= 0:
                log.info("paused for long: the worker ends, and the next one goes on from its checkpoint")
                self.requests.stop.set()
                return
            self.attempt.at(self.progress.step, PAUSED)
            self.requests.wait(left)
            self.edge()

    def one_step(self, step: int) -> None:
        """Rollouts, update, report. Only the update changes state."""
        began = time.monotonic()
        self.attempt.at(step, "propose")
        records = self.rollouts(step)
        crash_point("worker.before_update")
        self.plan_ahead(step, records)
        report = self.with_less_memory(lambda: self.trainer.update(step, records), "update")
        self.with_less_memory(self.ahead.complete, ROLLOUT)
        self.progress.step = step
        self.progress.tokens += report.tokens
        self.is_sound = report.sound
        self.take_more()
        crash_point("worker.after_update")
        self.report(report, time.monotonic() - began)
        self.count_not_finite(report)
        profile = self.attempt.profile
        if message := warning_of(step, report.metrics, bounds_of(profile, profile.optimizer.mismatch_limit)):
            self.attempt.warn(message)

    def plan_ahead(self, step: int, records: Sequence[Record]) -> None:
        """With run.overlap: let the update of `step` draw the next step's rollouts, or read those of an earlier
        attempt.

        Not over the end of a cycle: each cycle's first rollouts are drawn with the weights that train on them, which
        compares the engine with the trainer.
        """
        following = step + 1
        if not self.attempt.profile.run.overlap or following >= self.spec.end_step:
            return
        assert isinstance(self.trainer, Overlapping)  # a rule of the profile
        collect = self.trainer.collect_after(following, records)
        path, header = self.attempt.run.rollout_file(self.spec.cycle, following), self.header(following)

        def draw() -> list[Record]:
            self.attempt.drawn_step = following
            stored = rollout_file.read(path, header)
            return collect() if stored is None else stored

        self.ahead.plan(following, draw)

    def rollouts(self, step: int) -> list[Record]:
        """From an earlier attempt's file, or generated and made durable. Always returns what was read back."""
        path = self.attempt.run.rollout_file(self.spec.cycle, step)
        records = self.reuse_or_collect(path, step)
        if self.spec.isolate:
            self.attempt.dir.evidence.mkdir(exist_ok=True)
            shutil.copyfile(path, self.attempt.dir.evidence / path.name)
        return records

    def header(self, step: int) -> Header:
        """Of the file with the rollouts of `step`."""
        return Header(
            run_id=self.spec.run_id,
            profile_sha256=self.spec.profile_sha256,
            step=step,
            reseeds=self.progress.reseeds,
            reductions=self.spec.reductions,
        )

    def reuse_or_collect(self, path: Path, step: int) -> list[Record]:
        header, collected = self.header(step), self.ahead.take(step)
        records = rollout_file.read(path, header)
        if records is not None:
            log.info("step %d: rollouts of an earlier attempt are reused", step)
            return records
        if collected is None:
            collected = self.with_less_memory(lambda: self.trainer.collect(step), ROLLOUT)
        rollout_file.write(path, header, collected)
        crash_point("worker.rollouts_done")
        stored = rollout_file.read(path, header)
        assert stored is not None, f"{path}: does not read back"
        return stored

    def with_less_memory(self, work: Callable[[], Value], phase: str) -> Value:
        """`work()`, repeated with smaller sizes after each out-of-memory error of the device.

        phase: where it happened, if the error is not marked. Raises LonghaulError (CUDA_OOM) if nothing is left to
        halve.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if not is_out_of_memory(error) or not self.requests.may_save.is_set():  # alone it may have room
                    raise
                text, marked = str(error), phase_of(error)
            # Outside the handler: its traceback keeps alive the memory that the retry needs.
            self.take_less(marked or phase, text)

    def take_less(self, phase: str, text: str) -> None:
        self.ahead.wait()  # it reads what a resize changes
        before = self.progress.backoff.now
        sizes = self.progress.backoff.halve(phase)
        if sizes is None:
            raise LonghaulError(
                f"the GPU is out of memory ({phase}), and nothing is left to halve: {before}",
                kept="the head; the step was not applied",
                next_command="python -m orchestrator plan   (says what would fit)",
                exit_code=ExitCode.CUDA_OOM,
            )
        self.trainer.resize(sizes)
        self.progress.shrinks += 1
        graphs = "without its kept CUDA graphs, " if before and before.graphs and not sizes.graphs else ""
        message = f"out of memory ({phase}): repeating the step {graphs}with {sizes}"
        self.attempt.event(
            event_kinds.OOM_RETRY, text=message, phase=phase, shrinks=self.progress.shrinks, error=text[:500]
        )

    def take_more(self) -> None:
        """Grow once, some hundred steps after an out-of-memory error: what was too much then may fit now."""
        if (sizes := self.progress.backoff.step_done()) is not None:
            self.trainer.resize(sizes)
            self.attempt.warn(f"no out-of-memory error for many steps: {sizes} from here on")

    def report(self, report: StepReport, seconds: float) -> None:
        metrics = dict(report.metrics)
        metrics |= {f"seconds/{name}": value for name, value in self.attempt.take_seconds().items()}
        metrics |= {"seconds": seconds, "tokens": report.tokens, "oom_retries": self.progress.shrinks}
        metrics |= resident_bytes()
        self.attempt.event(event_kinds.STEP, **metrics)
        if report.examples:
            self.attempt.event(event_kinds.EXAMPLES, tasks=list(report.examples))
        for text in report.warnings:
            self.attempt.warn(text)

    def count_not_finite(self, report: StepReport) -> None:
        """Rule N1: report a step with non-finite numbers; the third in a row ends the attempt."""
        if report.finite:
            self.progress.not_finite_in_row = 0
            return
        self.progress.not_finite_in_row += 1
        self.attempt.event(event_kinds.NOT_FINITE, in_row=self.progress.not_finite_in_row)
        if self.progress.not_finite_in_row >= MAX_NOT_FINITE:
            raise self.not_finite(f"log-probs, loss or gradients were not finite {MAX_NOT_FINITE} times in a row")

    def not_finite(self, what: str) -> LonghaulError:
        folder = self.attempt.run.relative(self.attempt.run.rollouts(self.spec.cycle))
        return LonghaulError(
            f"step {self.progress.step}: {what}; the rollouts are in {folder}",
            kept="the head, and the rollouts of these steps; none of these updates was applied",
            next_command="python -m orchestrator run --set optimizer.learning_rate=... --accept-changes",
            exit_code=ExitCode.NOT_FINITE,
        )

    def save(self, step: int) -> None:
        """Raises LonghaulError (NOT_FINITE) for weights known to give non-finite numbers: they would ruin the head."""
        if not self.is_sound:
            raise self.not_finite("log-probs of all rollouts were not finite, and such a policy is never saved")
        self.wait_for_validation()
        self.saver.save(step)

    def wait_for_validation(self) -> None:
        """If this worker was started ahead: wait until the validation of its head has decided that it goes on."""
        if not self.requests.may_save.is_set():
            self.attempt.at(self.progress.step, HELD)
            self.requests.may_save.wait()

    def edge(self) -> None:
        """Between two steps: save if due or requested, and answer all requests with that checkpoint.

        What is due beside the validation of the head is saved at the first edge after its result: to wait for that here
        would leave the device idle."""
        step, last = self.progress.step, self.spec.end_step - 1
        asked = self.requests.checkpoints_wanted()
        due = checkpoint_is_due(
            step,
            saved=self.saver.step,
            last=last,
            every=self.attempt.profile.run.checkpoint_every,
            asked=bool(asked) or self.requests.stop.is_set(),
        )
        if due and (step == last or self.requests.may_save.is_set()):
            self.save(step)
        self.saver.answer(asked)

    def save_end(self, outcome: Outcome) -> None:
        self.wait_for_validation()
        if self.is_seeded and self.saver.step != self.progress.step:
            self.save(self.progress.step)
        self.saver.answer(self.requests.checkpoints_wanted() + self.requests.stops_wanted())
        log.info("cycle %d: %s at step %d", self.spec.cycle, outcome.value, self.progress.step)

    def result(self, outcome: Outcome) -> Result:
        return Result(
            token=self.spec.token,
            role="train",
            outcome=outcome,
            exit_code=ExitCode.OK,
            last_step=self.progress.step,
            checkpoint=self.attempt.saved,
        )


def not_finite_warning(rollouts: int) -> str:
    return f"rollouts with log-probs or entropies that are not finite, and not trained on: {rollouts}"


def resident_bytes() -> dict[str, float]:
    """Memory of this process: now, and its peak."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - read at every step
        pages = int(file.read().split()[1])
    return {"rss_bytes": pages * resource.getpagesize(), "peak_rss_bytes": highest()}


def checkpoint_is_due(step: int, *, saved: int, last: int, every: int, asked: bool) -> bool:
    """Whether to write a checkpoint after `step`: if a multiple of `every` has passed since `saved`, which is the step
    of the newest one, -1 if none. (pure)

    A checkpoint of this very step answers every request; writing the same state twice has no use.
    """
    if step == saved:
        return False
    return asked or step == last or step // every > saved // every
