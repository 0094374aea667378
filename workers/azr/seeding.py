"""Grows the buffers of a new run from the model's own proposals, without any weight update.

Each batch is written to disk as a rollout file before the next one begins. A killed seeding resumes and ends with the
same buffers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Azr, Profile
from state.crash import crash_point
from workers.azr.buffers import Buffers
from workers.azr.proposing import Tools, propose, verify
from workers.cycle import rollout_file
from workers.cycle.rollout_file import Header
from workers.tasks.entry import SEED, Entry
from workers.tasks.items import Task
from workers.tasks.kinds.registry import kind_of

log = logging.getLogger("worker")


class Batch(Struct, frozen=True, kw_only=True):
    """The result of one batch of seeding."""

    task: Task
    found: list[Entry]
    """New valid tasks, in order."""
    reasons: dict[str, int] = {}
    """Rejection reason -> number of proposals."""
    proposals: int


Draw = Callable[[Buffers, Task, int], Batch]
"""(buffers, task, batch number) -> the batch."""


class Journal(Protocol):
    """Stores batches so that they survive a kill."""

    def read(self, number: int, task: Task) -> Batch | None: ...

    def write(self, number: int, batch: Batch) -> None: ...


class BatchFiles:
    """A `Journal` with one file per batch. Ignores files of another run, model or proposal setup.

    given_sha256: hash of the imported tasks that the buffers started with.
    """

    def __init__(self, path_of: Callable[[int], Path], run_id: str, profile: Profile, given_sha256: str = "") -> None:
        self._path_of, self._run_id, self._sha256 = path_of, run_id, seeding_sha256(profile, given_sha256)

    def read(self, number: int, task: Task) -> Batch | None:
        records = rollout_file.read(self._path_of(number), self._header(number))
        batch = msgspec.convert(records[0], Batch) if records else None
        return batch if batch is not None and batch.task == task else None

    def write(self, number: int, batch: Batch) -> None:
        rollout_file.write(self._path_of(number), self._header(number), [msgspec.to_builtins(batch)])
        crash_point("worker.rollouts_done")

    def _header(self, number: int) -> Header:
        return Header(run_id=self._run_id, profile_sha256=self._sha256, step=number)


def seeding_sha256(profile: Profile, given_sha256: str = "") -> str:
    """Hash of everything that decides which seeds are found.

    Excludes `seed_tasks` and `max_seed_batches`, which may change after `seed_stalled`.
    """
    azr = replace(profile.azr, seed_tasks=Azr().seed_tasks, max_seed_batches=Azr().max_seed_batches)
    parts = [profile.run.seed, profile.model, profile.sampling, azr, given_sha256]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def grow(
    tools: Tools,
    buffers: Buffers,
    stop_asked: Callable[[], bool],
    on_batch: Callable[[int], None] = lambda number: None,
    journal: Journal | None = None,
) -> None:
    """Fill every buffer to `azr.seed_tasks` tasks, or stop early if asked. on_batch: called with each batch's number.

    Raises LonghaulError (INPUT) `seed_stalled` after `azr.max_seed_batches` batches, with the rejection counts.
    """
    azr = tools.profile.azr

    def draw(known: Buffers, task: Task, number: int) -> Batch:
        on_batch(number)
        if journal is not None and (batch := journal.read(number, task)) is not None:
            return batch
        drawn = propose(tools, known, [task], azr.proposals_per_task, step=0, seed_batch=number)
        reasons: Counter[str] = Counter()
        proposed = verify(tools, known, drawn, 0, reasons, is_seeding=True)
        found = [one.checked.entry for one in proposed if one.checked.entry and not one.checked.reason]
        batch = Batch(task=task, found=found, reasons=dict(reasons), proposals=len(drawn))
        if journal is not None:
            journal.write(number, batch)
        return batch

    fill(buffers, azr.seed_tasks, azr.max_seed_batches, draw, stop_asked)


def fill(
    buffers: Buffers, target: int, max_batches: int, draw: Draw, stop_asked: Callable[[], bool] = lambda: False
) -> int:
    """Draw batches until every buffer holds `target` tasks; returns the number of batches.

    Batches alternate between the tasks. Kinds with a single input-output pair share what they find. Tasks beyond the
    target are dropped. Raises LonghaulError (INPUT) after `max_batches` batches.
    """
    shared: list[Task] = [task for task in buffers.of if not kind_of(task).many_pairs]
    reasons: Counter[str] = Counter()
    batches = proposals = 0
    while not stop_asked():
        short = [task for task in buffers.of if len(buffers.of[task]) < target]
        # Kinds that write no program use programs of the other kinds, so they come last.
        short = [task for task in short if kind_of(task).writes_program] or short
        if not short:
            break
        for task in short:
            if len(buffers.of[task]) >= target or stop_asked():
                continue
            if batches == max_batches:
                raise stalled(buffers, target, batches, proposals, reasons)
            batches += 1
            batch = draw(buffers, task, batches)
            reasons.update(batch.reasons)
            proposals += batch.proposals
            _store(buffers, shared if task in shared else [task], batch.found, target)
            log.info(
                "seeding, batch %d (%s): %d of %d accepted, %d of %d tasks",
                batches,
                task,
                len(batch.found),
                batch.proposals,
                len(buffers.of[task]),
                target,
            )
    return batches


def _store(buffers: Buffers, tasks: list[Task], found: list[Entry], target: int) -> None:
    for entry in found:
        for task in tasks:
            if len(buffers.of[task]) < target:
                buffers.of[task].add(replace(entry, task=task, source=SEED))


def stalled(buffers: Buffers, target: int, batches: int, proposals: int, reasons: Counter[str]) -> LonghaulError:
    """The error for a seeding that makes no progress, with a histogram of the rejections."""
    sizes = ", ".join(f"{task} {len(buffer)}" for task, buffer in buffers.of.items())
    shares = [f"{reason} {count} ({count / max(proposals, 1):.0%})" for reason, count in reasons.most_common()]
    accepted = proposals - reasons.total()
    return LonghaulError(
        f"seed_stalled: {batches} batches gave {sizes} of {target} tasks; of {proposals} proposals {accepted} were "
        f"accepted; refused: {', '.join(shares) or 'none'}",
        kept="the tasks found so far: the next start goes on from them",
        next_command="python -m orchestrator run --accept-changes --set azr.max_seed_batches=N   (more than "
        f"{batches}), or --set azr.seed_tasks=N   (fewer than {target})",
        exit_code=ExitCode.INPUT,
    )
