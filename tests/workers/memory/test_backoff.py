"""Smaller sizes after an out-of-memory error: their order, what is remembered, and when they grow again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workers.cycle.progress import Progress
from workers.memory.backoff import CLEAN_STEPS, LEAST_HEAD_ROWS, Backoff, Sizes, larger, smaller

ASKED = Sizes(micro_batch=4, head_rows=128, rollout_rows=64)


@pytest.mark.parametrize(
    ("sizes", "phase", "expected"),
    [
        pytest.param((4, 128, 64), "train", (2, 128, 64), id="an update halves its micro-batch"),
        pytest.param((4, 128, 64), "score", (2, 128, 64), id="so does what the update scores first"),
        pytest.param((3, 128, 64), "train", (2, 128, 64), id="rounded up"),
        pytest.param((1, 128, 64), "train", (1, 64, 64), id="at one rollout the head's rows follow"),
        pytest.param((1, 30, 64), "train", (1, 16, 64), id="down to sixteen"),
        pytest.param((1, 16, 64), "train", None, id="then nothing is left"),
        pytest.param((1, 5, 64), "train", None, id="nor where there were fewer from the start"),
        pytest.param((4, 128, 64), "rollout", (4, 128, 32), id="rollouts have rows of their own"),
        pytest.param((1, 16, 3), "rollout", (1, 16, 2), id="whatever the update has come to"),
        pytest.param((4, 128, 1), "rollout", None, id="one rollout is the least"),
    ],
)
def test_what_is_halved(sizes: tuple[int, int, int], phase: str, expected: tuple[int, int, int] | None) -> None:
    assert smaller(Sizes(*sizes), phase) == (None if expected is None else Sizes(*expected))


@pytest.mark.parametrize("phase", ["train", "rollout"])
def test_graphs_go_before_anything_is_halved(phase: str) -> None:
    assert smaller(Sizes(4, 128, 64, graphs=True), phase) == ASKED


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(["train", "rollout"]))
def test_the_ladder_ends_and_each_rung_takes_less(micro_batch: int, head: int, rows: int, phase: str) -> None:
    sizes, rungs = Sizes(micro_batch, head, rows), 0
    while (after := smaller(sizes, phase)) is not None:
        changed = [name for name in Sizes.__struct_fields__ if getattr(after, name) != getattr(sizes, name)]
        assert len(changed) == 1 and 0 < getattr(after, changed[0]) < getattr(sizes, changed[0])
        sizes, rungs = after, rungs + 1
    assert rungs <= 24
    assert sizes.rollout_rows == 1 if phase == "rollout" else sizes.micro_batch == 1
    assert phase == "rollout" or sizes.head_rows <= max(LEAST_HEAD_ROWS, head)


def test_growing_takes_back_the_last_rung_and_never_exceeds_what_was_asked() -> None:
    assert larger(Sizes(1, 32, 64), ASKED) == Sizes(1, 64, 64)
    assert larger(Sizes(1, 128, 64), ASKED) == Sizes(2, 128, 64)
    assert larger(Sizes(4, 128, 48), ASKED) == ASKED
    assert larger(ASKED, ASKED) == ASKED
    captured = replace(ASKED, graphs=True)
    assert larger(Sizes(4, 128, 48), captured) == ASKED
    assert larger(ASKED, captured) == captured


def test_after_two_hundred_clean_steps_it_grows_once_and_then_never_again() -> None:
    backoff = Backoff()
    backoff.begin(ASKED)
    assert backoff.step_done() is None and backoff.clean_steps == 0  # nothing to grow back to
    backoff.halve("train")
    backoff.halve("train")
    grown = [step for step in range(1, 3 * CLEAN_STEPS) if backoff.step_done() is not None]
    assert grown == [CLEAN_STEPS]
    assert backoff.now == Sizes(2, 128, 64)


def test_another_lack_of_memory_begins_the_count_anew() -> None:
    backoff = Backoff()
    backoff.begin(ASKED)
    backoff.halve("train")
    assert [backoff.step_done() for _ in range(CLEAN_STEPS - 1)] == [None] * (CLEAN_STEPS - 1)
    backoff.halve("rollout")
    assert backoff.step_done() is None
    assert backoff.clean_steps == 1


def test_it_is_remembered_in_a_checkpoint(tmp_path: Path) -> None:
    progress = Progress()
    progress.backoff.begin(ASKED)
    progress.backoff.halve("train")
    progress.backoff.step_done()
    progress.save(tmp_path / "progress.json")
    resumed = Progress()
    resumed.load(tmp_path / "progress.json")
    assert resumed.backoff == progress.backoff
    assert resumed.backoff.begin(ASKED) == Sizes(2, 128, 64)


def test_a_checkpoint_from_before_has_nothing_to_remember(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"step": 7, "tokens": 5, "shrinks": 1}')
    progress = Progress()
    progress.load(tmp_path / "progress.json")
    assert progress.backoff.begin(ASKED) == ASKED


def test_an_attempt_that_ended_for_lack_of_memory_asks_for_less_and_never_gets_more() -> None:
    backoff = Backoff()
    backoff.begin(Sizes(4, 128, 16))
    backoff.halve("rollout")
    backoff.halve("rollout")
    assert backoff.begin(Sizes(4, 128, 8)) == Sizes(4, 128, 4)
    assert backoff.begin(Sizes(2, 128, 2)) == Sizes(2, 128, 2)


def test_what_a_person_asks_for_anew_holds_and_the_rest_is_remembered() -> None:
    backoff = Backoff()
    backoff.begin(ASKED)
    backoff.halve("train")
    backoff.halve("rollout")
    assert backoff.begin(Sizes(8, 128, 64)) == Sizes(8, 128, 32)
    assert backoff.begin(Sizes(8, 128, 16)) == Sizes(8, 128, 16)
