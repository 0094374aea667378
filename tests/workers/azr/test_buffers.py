"""Rows B1 to B14 of the algorithm's checklist that concern buffers, and what a checkpoint holds of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from profiles.errors import LonghaulError
from workers.azr.buffers import (
    Buffer,
    Buffers,
    consolidate,
    draw_references,
    is_stored,
    reference_weights,
    solver_batch,
)
from workers.azr.seeding import Batch, fill
from workers.tasks.entry import Entry, make_entry
from workers.tasks.items import Task
from workers.tasks.seeds import seed_entries


def entry(number: int, *, step: int = 1, source: str = "selfplay", task: Task = "ded", rate: float = 0.5) -> Entry:
    program = f"def f(a):\n    return a + {number}"
    return make_entry(task, program, ["1"], [str(1 + number)], step=step, source=source, solve_rate=rate)


@pytest.mark.parametrize(("size", "drawn"), [(1, 1), (3, 3), (500, 6)])
def test_b1_references_are_different_and_at_most_k(size: int, drawn: int) -> None:
    found = draw_references(range(size), 6, Random(0))
    assert len(set(found)) == len(found) == drawn


def test_b2_recent_references_may_weigh_more() -> None:
    rows = [entry(number, step=step) for number, step in enumerate((0, 0, 3))]
    weights = reference_weights(rows, "step")
    assert [weight / sum(weights) for weight in weights] == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    assert reference_weights(rows, "uniform") == []
    first = Counter(draw_references(range(3), 1, Random(seed), weights)[0] for seed in range(3000))
    assert [first[place] / 3000 for place in range(3)] == pytest.approx([1 / 6, 1 / 6, 4 / 6], abs=0.03)


def test_b2_weighted_references_are_different_too() -> None:
    assert all(len(set(draw_references(range(4), 3, Random(seed), [1, 1, 1, 9]))) == 3 for seed in range(50))


def test_b3_new_tasks_come_first_and_old_ones_fill() -> None:
    batch, repeats = solver_batch(["n1", "n2"], [f"o{i}" for i in range(10)], 4, Random(0))
    assert batch[:2] == ["n1", "n2"] and len(set(batch)) == 4 and repeats == 0


def test_b4_of_too_many_new_tasks_no_old_one_is_taken() -> None:
    batch, _ = solver_batch(list(range(9)), [100], 4, Random(0))
    assert len(set(batch)) == 4 and set(batch) <= set(range(9))


def test_b5_too_few_tasks_are_repeated_and_counted() -> None:
    batch, repeats = solver_batch([], ["a", "b"], 4, Random(0))
    assert len(batch) == 4 and set(batch) == {"a", "b"} and repeats == 2


@pytest.mark.parametrize(
    ("mix", "num_new", "num_old", "new_in_batch"),
    [
        pytest.param("max_new", 3, 9, 3, id="all new ones"),
        pytest.param("half_new", 3, 9, 2, id="half of the batch at most"),
        pytest.param("half_new", 4, 1, 3, id="more of them where old ones are too few"),
        pytest.param("step", 9, 9, 4, id="those of the newest step, where old ones are seeds"),
    ],
)
def test_how_many_new_tasks_a_solver_batch_has(mix: str, num_new: int, num_old: int, new_in_batch: int) -> None:
    new, old = [f"n{i}" for i in range(num_new)], [f"o{i}" for i in range(num_old)]
    steps = dict.fromkeys(new, 5.0) | dict.fromkeys(old, 0.0)
    batch, repeats = solver_batch(new, old, 4, Random(1), mix, steps.__getitem__)
    assert sum(one in new for one in batch) == new_in_batch
    assert len(set(batch)) == 4 and repeats == 0


def test_a_uniform_batch_draws_new_and_old_tasks_alike() -> None:
    counts = Counter(
        one for seed in range(2000) for one in solver_batch(["n"], ["a", "b", "c"], 2, Random(seed), "uniform_total")[0]
    )
    assert all(counts[one] / 2000 == pytest.approx(0.5, abs=0.05) for one in "nabc")


def test_seeds_fill_a_batch_by_steps_where_nothing_else_is_there() -> None:
    batch, repeats = solver_batch([], ["a", "b"], 3, Random(0), "step", lambda one: 0.0)
    assert set(batch) == {"a", "b"} and repeats == 1


@pytest.mark.parametrize(
    ("rule", "stored"),
    [("all", [-1, 0, 0.5, 1]), ("non_one", [-1, 0, 0.5]), ("non_extremes", [-1, 0.5])],
)
def test_which_new_tasks_are_stored(rule: str, stored: list[float]) -> None:
    assert [rate for rate in (-1, 0, 0.5, 1) if is_stored(rate, rule)] == stored


def test_b8_the_oldest_that_is_no_seed_leaves_a_full_buffer() -> None:
    buffer = Buffer(cap=5)
    for number, step in enumerate((0, 0, 1, 2, 3, 4)):
        buffer.add(entry(number, step=step, source="seed" if step == 0 else "selfplay"))
    assert [one.step for one in buffer.entries] == [0, 0, 2, 3, 4]


def test_b8_a_new_task_enters_a_buffer_that_is_full_of_seeds() -> None:
    buffer = Buffer(cap=2)
    for number in range(4):
        buffer.add(entry(number, step=number, source="seed" if number < 2 else "selfplay"))
    assert [one.step for one in buffer.entries] == [1, 3]


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


def stub(buffers: Buffers, task: Task, number: int, size: int, distinct: bool) -> Batch:
    """A batch of `size` proposals that are all accepted, or all the same."""
    proposed = [entry(1000 * number + place if distinct else 1, task=task, step=0) for place in range(size)]
    found = {one.key: one for one in proposed if one.key not in buffers.of[task]}
    reasons = {"repeat": size - len(found)} if len(found) < size else {}
    return Batch(task=task, found=list(found.values()), reasons=reasons, proposals=size)


def seeded_buffers() -> Buffers:
    buffers = Buffers(("abd", "ded", "ind"), 16384)
    for one in seed_entries(("abd", "ded", "ind"), "general"):
        buffers.of[one.task].add(one)
    return buffers


def test_b6_seeding_fills_triplets_in_four_batches_of_64() -> None:
    buffers, sizes = seeded_buffers(), []
    del buffers.of["ind"]

    def draw(known: Buffers, task: Task, number: int) -> Batch:
        sizes.append((task, len(known.of[task])))
        return stub(known, task, number, 64, True)

    assert fill(buffers, 256, 200, draw) == 4
    assert sizes == [("abd", 1), ("ded", 65), ("abd", 129), ("ded", 193)]
    assert [len(buffer) for buffer in buffers.of.values()] == [256, 256]
    assert [e.key for e in buffers.of["abd"].entries] == [e.key for e in buffers.of["ded"].entries]


def test_b7_seeding_that_finds_nothing_new_ends_with_the_reasons() -> None:
    with pytest.raises(
        LonghaulError, match=r"seed_stalled: 5 batches .* of 320 proposals 1 were .* repeat 319 \(100%\)"
    ):
        fill(seeded_buffers(), 256, 5, lambda known, task, n: stub(known, task, n, 64, False))


def test_seeding_ends_early_when_asked_to_stop() -> None:
    assert fill(seeded_buffers(), 256, 5, stub, lambda: True) == 0  # type: ignore[arg-type]


def test_seeds_are_the_identity_once_for_each_task() -> None:
    for style in ("general", "pocket"):
        found = seed_entries(("abd", "ded", "ind"), style)
        assert [one.task for one in found] == ["abd", "ded", "ind"]
        assert all(one.inputs == one.outputs and one.source == "seed" for one in found)
