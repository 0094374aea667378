"""Conversations: every engine says what asking anew each turn would, and reads only what is new."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from tests.workers.rollout.models import LETTERS, decode, direct_log_probs, tiny_model
from workers.rollout.conversation import turn_seed
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions

MODEL = tiny_model()
PROMPTS = [(3, 4, 5, 6, 7, 8, 9), (5,), (9, 8, 7), (5,), (3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3), (9, 8, 7), (4, 4)]
REQUESTS = [Request(prompt, seed) for seed, prompt in enumerate(PROMPTS, start=40)]
TURNS = 4
HOW = Sampling(max_new_tokens=48, stop=("B", "C", "K", "M"), entropies=True)
ENGINES: dict[str, Callable[[], Any]] = {
    "native": lambda: NativeEngine(MODEL, decode),
    "graph": lambda: GraphEngine(MODEL, decode, max_rows=64),
    "graph, two slots": lambda: GraphEngine(MODEL, decode, max_rows=2),
}


def answer(number: int, so_far: Rollout) -> tuple[int, ...]:
    """Says more or less by what was said; ends after some turns, a number of them by the request's."""
    turns = _turns(so_far)
    if turns >= 1 + (number + TURNS) % TURNS:
        return ()
    return tuple(2 + (so_far.completion_ids[-1] + k) % (len(LETTERS) - 3) for k in range(1 + (number + turns) % 5))


def _turns(so_far: Rollout) -> int:
    flags = so_far.is_own or (True,) * len(so_far.completion_ids)
    return sum(own and not after for own, after in zip(flags, (*flags[1:], False), strict=True))


def at_once(number: int, so_far: Rollout) -> Future[tuple[int, ...]]:
    found: Future[tuple[int, ...]] = Future()
    found.set_result(answer(number, so_far))
    return found


def later(number: int, so_far: Rollout) -> Future[tuple[int, ...]]:
    """Answers from another thread, some sooner than others."""
    found: Future[tuple[int, ...]] = Future()
    threading.Timer(0.002 * (number % 3), lambda: found.set_result(answer(number, so_far))).start()
    return found


def reference() -> list[Rollout]:
    """Each conversation alone, asking anew each turn through transformers' `generate`."""
    return [Portions(HfEngine(MODEL, decode)).converse([one], HOW, lambda _, so_far, n=n: at_once(n, so_far))[0]  # type: ignore[misc]
            for n, one in enumerate(REQUESTS)]  # fmt: skip


@pytest.mark.parametrize("respond", [at_once, later])
@pytest.mark.parametrize("name", [*ENGINES])
def test_a_conversation_is_that_of_asking_anew_each_turn(name: str, respond: Any) -> None:
    told: dict[int, Rollout] = {}
    found = Portions(ENGINES[name](), 4).converse(REQUESTS, HOW, respond, told.__setitem__)
    expected = reference()
    assert [(one.completion_ids, one.is_own, one.finish_reason) for one in found] == [
        (one.completion_ids, one.is_own, one.finish_reason) for one in expected
    ]
    assert told == dict(enumerate(found))
    assert any(one.finish_reason == "length" for one in found) or all(_turns(one) for one in found)
    assert max(map(_turns, found)) >= 3


@pytest.mark.parametrize("name", [*ENGINES])
def test_log_probs_are_those_of_the_ids_that_the_model_drew(name: str) -> None:
    for one in Portions(ENGINES[name]()).converse(REQUESTS, HOW, at_once):
        own = torch.tensor(one.is_own or (True,) * len(one.completion_ids))
        assert len(one.log_probs) == len(one.entropies) == int(own.sum())
        torch.testing.assert_close(
            torch.tensor(one.log_probs), direct_log_probs(MODEL, one, 1.0)[own], atol=2e-5, rtol=1e-4
        )


@pytest.mark.parametrize("name", [*ENGINES])
def test_a_conversation_that_reaches_the_limit_ends_with_its_last_reply(name: str) -> None:
    short = Sampling(max_new_tokens=7, stop=HOW.stop)
    for one in Portions(ENGINES[name](), 4).converse(REQUESTS, short, lambda number, so_far: said((9,) * 3)):
        assert one.finish_reason == "length"
        assert len(one.completion_ids) <= 7
        assert not one.is_own or one.is_own[-1]


@pytest.mark.parametrize("name", [*ENGINES])
def test_a_row_at_the_limit_does_not_disturb_those_that_have_just_begun(name: str) -> None:
    def respond(number: int, so_far: Rollout) -> Future[tuple[int, ...]]:
        long = HOW.max_new_tokens - len(so_far.completion_ids) - 2
        return said(() if so_far.is_own else (9,) * (1 if number else long))

    many = [Request((5, 6), seed) for seed in range(12)]
    found = Portions(ENGINES[name]()).converse(many, HOW, respond)
    expected = Portions(HfEngine(MODEL, decode)).converse(many, HOW, respond)
    assert [one.completion_ids for one in found] == [one.completion_ids for one in expected]
    assert found[0].finish_reason == "length"


def said(ids: tuple[int, ...]) -> Future[tuple[int, ...]]:
    found: Future[tuple[int, ...]] = Future()
    found.set_result(ids)
    return found


@pytest.mark.parametrize("make", [ENGINES["native"], ENGINES["graph"]], ids=["native", "graph"])
def test_a_turn_reads_what_is_new_and_nothing_else(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes over several tokens a row: the prompt, then for each turn the last id that was drawn and what was said."""
    engine = make()
    decoder = engine.decoder if isinstance(engine, NativeEngine) else engine._decoder
    read: list[int] = []
    run = decoder.run_layers

    def counted(ids: torch.Tensor, *others: Any) -> torch.Tensor:
        if ids.shape[1] > 1:
            read.append(ids.shape[1])
        result: torch.Tensor = run(ids, *others)
        return result

    monkeypatch.setattr(decoder, "run_layers", counted)
    (one,) = engine.converse([REQUESTS[0]], HOW, lambda _, so_far: at_once(3, so_far))
    turns = [length for length in _said(one)]
    is_graph = isinstance(engine, GraphEngine)  # leaves the last token of each to its first decode step
    expected = [len(one.prompt_ids) - is_graph, *(length + 1 - is_graph for length in turns)]
    assert read == [length for length in expected if length > 1]
    assert turns


def _said(one: Rollout) -> Sequence[int]:
    """Lengths of what was said between replies."""
    found, before = [], True
    for own in one.is_own:
        if not own and before:
            found.append(0)
        if not own:
            found[-1] += 1
        before = own
    return found


def test_every_turn_has_a_random_stream_of_its_own() -> None:
    assert len({turn_seed(seed, turn) for seed in (1, 2) for turn in range(5)}) == 10
    assert turn_seed(7, 0) == 7
