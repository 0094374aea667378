"""Rollouts are handed out when they end: each once, as `generate` returns it, by every engine that streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.workers.rollout.models import REQUESTS, tiny_model
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions

MODEL = tiny_model()
HOW = Sampling(max_new_tokens=6)
ENGINES: list[Callable[[Any], Any]] = [NativeEngine, lambda model: GraphEngine(model, max_rows=2), HfEngine]


@pytest.mark.parametrize("engine", ENGINES, ids=["native", "graph", "hf"])
@pytest.mark.parametrize("max_rows", [2, 64])
def test_every_rollout_is_told_once_and_as_it_is_returned(engine: Callable[[Any], Any], max_rows: int) -> None:
    told: list[tuple[int, Rollout]] = []
    portions = Portions(engine(MODEL), max_rows)
    rollouts = portions.generate(REQUESTS, HOW, lambda number, one: told.append((number, one)))
    assert sorted(number for number, _ in told) == list(range(len(REQUESTS)))
    assert all(rollouts[number] == one for number, one in told)
    assert rollouts == Portions(engine(MODEL), max_rows).generate(REQUESTS, HOW)


def test_a_short_rollout_is_told_before_a_long_one_has_ended() -> None:
    lengths: list[int] = []
    asked = [Request((5, 6, 7), seed) for seed in range(8)]
    stops = range(0, MODEL.config.vocab_size, 8)
    NativeEngine(MODEL, stop_ids=stops).stream(asked, HOW, lambda _, one: lengths.append(len(one.completion_ids)))
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
