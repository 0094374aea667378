"""Rows B1 to B14 of the algorithm's checklist that concern buffers, and what a checkpoint holds of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from profiles.errors import LonghaulError
from workers.azr.buffers import Buffer, Buffers, Entry, consolidate, draw_references, make_entry, solver_batch
from workers.azr.proposing import Proposed
from workers.azr.seeding import fill
from workers.azr.seeds import seed_entries
from workers.azr.tasks import Task
from workers.azr.validate_proposals import Checked
from workers.rollout.engine import Rollout


def entry(number: int, *, step: int = 1, source: str = "selfplay", task: Task = "ded", rate: float = 0.5) -> Entry:
    program = f"def f(a):\n    return a + {number}"
    return make_entry(task, program, ["1"], [str(1 + number)], step=step, source=source, solve_rate=rate)


@pytest.mark.parametrize(("size", "drawn"), [(1, 1), (3, 3), (500, 6)])
def test_b1_references_are_different_and_at_most_k(size: int, drawn: int) -> None:
    found = draw_references(range(size), 6, Random(0))
    assert len(set(found)) == len(found) == drawn


def test_b3_new_tasks_come_first_and_old_ones_fill() -> None:
    batch, repeats = solver_batch(["n1", "n2"], [f"o{i}" for i in range(10)], 4, Random(0))
    assert batch[:2] == ["n1", "n2"] and len(set(batch)) == 4 and repeats == 0


def test_b4_of_too_many_new_tasks_no_old_one_is_taken() -> None:
    batch, _ = solver_batch(list(range(9)), [100], 4, Random(0))
    assert len(set(batch)) == 4 and set(batch) <= set(range(9))


def test_b5_too_few_tasks_are_repeated_and_counted() -> None:
    batch, repeats = solver_batch([], ["a", "b"], 4, Random(0))
    assert len(batch) == 4 and set(batch) == {"a", "b"} and repeats == 2


def test_b8_the_oldest_that_is_no_seed_leaves_a_full_buffer() -> None:
    buffer = Buffer(cap=5)
    for number, step in enumerate((0, 0, 1, 2, 3, 4)):
        buffer.add(entry(number, step=step, source="seed" if step == 0 else "selfplay"))
    assert [one.step for one in buffer.entries] == [0, 0, 2, 3, 4]


def test_b9_b10_comments_and_spacing_make_no_new_task() -> None:
    buffer = Buffer(cap=9)
    one = make_entry("ded", "def f(a, b):\n    return a", ["1,2"], ["1"], step=1, source="selfplay")
    two = make_entry("ded", "def f(a, b):  # why\n\n    return (a)", ["1, 2"], ["1"], step=1, source="selfplay")
    assert [buffer.add(one), buffer.add(two)] == [True, False]
    assert two.key in buffer and len(buffer) == 1


def test_b11_a_saved_buffer_comes_back_in_order(tmp_path: Path) -> None:
    buffers = Buffers(("abd", "ded", "ind"), 100)
    for number in range(5):
        buffers.of["ded"].add(entry(number))
        buffers.of["abd"].add(entry(number, task="abd"))
    buffers.save(tmp_path / "rows")
    restored = Buffers(("abd", "ded", "ind"), 100)
    restored.of["ded"].add(entry(99))
    restored.load(tmp_path / "rows")
    assert {task: buffer.entries for task, buffer in restored.of.items()} == {
        task: buffer.entries for task, buffer in buffers.of.items()
    }
    assert entry(3).key in restored.of["ded"] and entry(99).key not in restored.of["ded"]


def test_an_evicted_task_may_come_again() -> None:
    buffer = Buffer(cap=1)
    buffer.add(entry(1))
    buffer.add(entry(2))
    assert buffer.add(entry(1))


def test_programs_of_induction_are_distinct_across_both_buffers() -> None:
    buffers = Buffers(("abd", "ded", "ind"), 100)
    for task in ("abd", "ded"):
        buffers.of[task].add(entry(1, task=task))
    assert [one.program for one in buffers.programs()] == [entry(1).program]


def test_consolidation_keeps_seeds_and_the_newest_learnable_tasks_once() -> None:
    rows = [entry(0, source="seed", rate=-1)] + [entry(i, step=i, rate=i % 2 * 0.5) for i in range(1, 9)]
    kept = consolidate([*rows, rows[3]], keep_share=0.5)
    assert [one.step for one in kept] == [1, 5, 7]
    assert consolidate(kept, 1.0) == kept


def stub(buffers: Buffers, task: Task, number: int, size: int, distinct: bool) -> list[Proposed]:
    drawn = []
    for place in range(size):
        found = entry(1000 * number + place if distinct else 1, task=task, step=0)
        reason = "" if found.key not in buffers.of[task] else "repeat"
        drawn.append(Proposed(task, 0, Rollout((), (), (), "stop"), Checked(found, reason)))
    return drawn


def seeded_buffers() -> Buffers:
    buffers = Buffers(("abd", "ded", "ind"), 16384)
    for one in seed_entries(("abd", "ded", "ind"), "general"):
        buffers.of[one.task].add(one)
    return buffers


def test_b6_seeding_fills_triplets_in_four_batches_of_64() -> None:
    buffers = seeded_buffers()
    del buffers.of["ind"]
    batches = fill(buffers, 256, 200, lambda known, task, n: stub(known, task, n, 64, True), Counter())
    assert batches == 4
    assert [len(buffer) for buffer in buffers.of.values()] == [256, 256]
    assert [e.key for e in buffers.of["abd"].entries] == [e.key for e in buffers.of["ded"].entries]


def test_b7_seeding_that_finds_nothing_new_ends_with_the_reasons() -> None:
    buffers, reasons = seeded_buffers(), Counter({"repeat": 63})
    with pytest.raises(LonghaulError, match=r"seed_stalled: 5 batches .* repeat 63"):
        fill(buffers, 256, 5, lambda known, task, n: stub(known, task, n, 64, False), reasons)


def test_seeding_ends_early_when_asked_to_stop() -> None:
    assert fill(seeded_buffers(), 256, 5, lambda *_: [], Counter(), lambda: True) == 0


def test_seeds_are_the_identity_once_for_each_task() -> None:
    for style in ("general", "pocket"):
        found = seed_entries(("abd", "ded", "ind"), style)
        assert [one.task for one in found] == ["abd", "ded", "ind"]
        assert all(one.inputs == one.outputs and one.source == "seed" for one in found)
