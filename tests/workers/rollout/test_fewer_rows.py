"""Out of memory in validation or evaluation: fewer rollouts decode side by side, with a smaller cache."""

from __future__ import annotations

import pytest
import torch

from tests.workers.rollout.models import tiny_model
from workers.rollout.engine import Request, Sampling
from workers.rollout.fewer_rows import with_fewer_rows
from workers.rollout.graph import engine as graph_engine
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions


def full(rows: int, fitting: int) -> str:
    if rows > fitting:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    return f"{rows} rows"


@pytest.mark.parametrize(("fitting", "found"), [(16, "16 rows"), (15, "8 rows"), (3, "2 rows"), (1, "1 rows")])
def test_fewer_rows_are_tried_until_they_fit(fitting: int, found: str) -> None:
    engine, told = Portions(NativeEngine.__new__(NativeEngine), 16), list[str]()
    assert with_fewer_rows(engine, lambda: full(engine.max_rows, fitting), told.append) == found
    assert len(told) == {"16 rows": 0, "8 rows": 1, "2 rows": 3, "1 rows": 4}[found]


def test_one_rollout_that_does_not_fit_and_any_other_failure_are_raised() -> None:
    engine, told = Portions(NativeEngine.__new__(NativeEngine), 4), list[str]()
    with pytest.raises(torch.OutOfMemoryError):
        with_fewer_rows(engine, lambda: full(engine.max_rows, 0), told.append)
    assert engine.max_rows == 1 and len(told) == 2

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        with_fewer_rows(Portions(NativeEngine.__new__(NativeEngine), 4), broken, told.append)
    assert len(told) == 2


def test_the_cache_of_captured_steps_becomes_smaller_and_the_rollouts_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [Request((5, 6, 7 + number % 20), number) for number in range(32)]
    sampling, model = Sampling(max_new_tokens=4), tiny_model()
    expected = Portions(GraphEngine(model), 32).generate(requests, sampling)
    read = graph_engine.read_prompts

    def with_room_for_8(decoder: object, state: graph_engine.State, *rest: object) -> None:
        full(state.shape.slots, 8)
        read(decoder, state, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(graph_engine, "read_prompts", with_room_for_8)
    engine, told = Portions(GraphEngine(model), 32), list[str]()
    found = with_fewer_rows(engine, lambda: engine.generate(requests, sampling), told.append)
    assert [one.completion_ids for one in found] == [one.completion_ids for one in expected]
    assert engine.max_rows == 8 and len(told) == 2
