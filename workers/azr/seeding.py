"""Growing the buffers of a new run by the model's own proposals, without any weight update."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from workers.azr.buffers import SEED, Buffers, Entry
from workers.azr.proposing import Proposed, Tools, propose, verify
from workers.azr.tasks import Task

log = logging.getLogger("worker")

Draw = Callable[[Buffers, Task, int], list[Proposed]]
"""(buffers, task, number of the batch) -> one batch of verified proposals."""


def grow(
    tools: Tools,
    buffers: Buffers,
    stop_asked: Callable[[], bool],
    on_batch: Callable[[int], None] = lambda number: None,
) -> None:
    """Bring every buffer to `azr.seed_tasks` tasks, fewer only when asked to stop. on_batch: told each batch's number.

    Raises LonghaulError (INTERNAL) `seed_stalled` after `azr.max_seed_batches` batches, with the reasons counted.
    """
    azr = tools.profile.azr
    reasons: Counter[str] = Counter()

    def draw(known: Buffers, task: Task, number: int) -> list[Proposed]:
        on_batch(number)
        drawn = propose(tools, known, [task], azr.proposals_per_task, step=0, purpose=f"seed {number}")
        return verify(tools, known, drawn, 0, reasons)

    fill(buffers, azr.seed_tasks, azr.max_seed_batches, draw, reasons, stop_asked)


def fill(
    buffers: Buffers, target: int, max_batches: int, draw: Draw, reasons: Counter[str],
    stop_asked: Callable[[], bool] = lambda: False,
) -> int:  # fmt: skip
    """The rule of growth; returns the number of batches. Abduction and deduction grow one shared set of triplets.

    Batches alternate between the tasks. A set that passes the target is cut to it.
    """
    triplets: list[Task] = [task for task in buffers.of if task != "ind"]
    batches = 0
    while not stop_asked():
        short = [task for task in buffers.of if len(buffers.of[task]) < target]
        # Induction asks about programs of the other two, so it comes when these are there.
        short = [task for task in short if task != "ind"] or short
        if not short:
            break
        for task in short:
            if len(buffers.of[task]) >= target or stop_asked():
                continue
            if batches == max_batches:
                raise stalled(buffers, target, max_batches, reasons)
            batches += 1
            found = [one.checked.entry for one in draw(buffers, task, batches) if one.checked.entry and not
                     one.checked.reason]  # fmt: skip
            _store(buffers, [task] if task == "ind" else triplets, found, target)
            log.info("seeding, batch %d (%s): %s of %d", batches, task, len(buffers.of[task]), target)
    return batches


def _store(buffers: Buffers, tasks: list[Task], found: list[Entry], target: int) -> None:
    for entry in found:
        for task in tasks:
            if len(buffers.of[task]) < target:
                buffers.of[task].add(replace(entry, task=task, source=SEED))


def stalled(buffers: Buffers, target: int, batches: int, reasons: Counter[str]) -> LonghaulError:
    sizes = ", ".join(f"{task} {len(buffer)}" for task, buffer in buffers.of.items())
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "none was refused"
    return LonghaulError(
        f"seed_stalled: {batches} batches gave {sizes} of {target} tasks; refused: {counts}",
        kept="nothing was trained yet",
        next_command="set azr.seed_tasks lower or azr.max_seed_batches higher, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )
