"""Prompts read by CUDA graphs: the same keys, values and rollouts, bit for bit, as by passes that are launched."""

from __future__ import annotations

import gc
import importlib.util
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from tests.workers.families import WINDOW
from tests.workers.interpreter import interpreted
from tests.workers.models.test_families import one_thread
from tests.workers.models.test_fast_layers import ATTENTION, MLP, OWN, model_of
from tests.workers.models.test_fast_stack import Recorder, captured
from tests.workers.rollout.test_read_prompts import adapted
from workers.models import adapters, fast_graphs
from workers.rollout.decoder import Decoder
from workers.rollout.engine import Request, Sampling
from workers.rollout.graph import prompts as reading
from workers.rollout.graph.capture import warming_stream
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.pages import PAGE
from workers.rollout.graph.prompt_graphs import Passes
from workers.rollout.graph.prompts import Prompt, passes_over, read_prompts
from workers.rollout.graph.state import Shape, State
from workers.rollout.graph.step_weights import Weights

__all__ = ["one_thread"]

LENGTH, SLOTS = 256, 4
HOW = Sampling(max_new_tokens=5, ignore_stop=True)
FAMILIES = [
    "qwen2", "qwen3, one key head, biases, tied, window", "ministral3, window, beyond the original context",
    "smollm3, biases, window", "gemma3_text, two ropes, cap", "phi3, longrope",
]  # fmt: skip


def prompt_of(size: int, seed: int = 0) -> Prompt:
    return tuple((7919 * place + 13 + 31 * seed) % 256 for place in range(size))


class Cache:
    """One of either kind, and the passes that write into it."""

    def __init__(self, model: Any, *, is_paged: bool, record: Recorder | None = None) -> None:
        weights, self.decoder = Weights(model), Decoder(model)
        weights.refresh()
        self.decoder.grow_rope(LENGTH)
        pages = SLOTS * LENGTH // PAGE if is_paged else 0
        self.state = State(Shape(SLOTS, LENGTH, 8, pages), weights.caches, self.decoder.dtype, "cpu")
        if is_paged:
            order = torch.randperm(pages, generator=torch.Generator().manual_seed(0))
            self.state.set_pages((1 + order).view(SLOTS, -1).tolist())
        self.passes = passes_over(self.decoder, self.state, sys.maxsize)
        if record is not None:
            self.passes._record, self.passes._measured = record, lambda work: (True, work())

    def read(
        self, prompts: Sequence[Prompt], slots: Sequence[int], shared: dict[int, int] | None = None
    ) -> list[Tensor]:
        """What the slots hold of their prompts afterwards."""
        with torch.inference_mode():
            read_prompts(self.decoder, self.state, self.passes, prompts, slots, shared or {})
            return [
                one
                for layer in range(len(self.state.keys))
                for prompt, slot in zip(prompts, slots, strict=True)
                for one in self.state.read(layer, torch.tensor([slot]), len(prompt) - 1)
            ]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


CALLS: list[tuple[list[Prompt], list[int]]] = [
    ([prompt_of(3 * WINDOW), prompt_of(WINDOW + 3)], [0, 2]),
    ([prompt_of(9, 1), prompt_of(2)], [1, 3]),
    ([prompt_of(WINDOW, 2), prompt_of(100, 3)], [2, 1]),
    # Equal prompts: two rows for four slots.
    ([prompt_of(70, 4), prompt_of(40, 5), prompt_of(70, 4), prompt_of(70, 4)], [3, 0, 1, 2]),
]


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_replay_writes_what_a_launched_pass_writes(name: str, is_paged: bool, tmp_path: Path) -> None:
    model = adapted(name, tmp_path)
    captured(model)
    record = Recorder()
    mine, plain = Cache(model, is_paged=is_paged, record=record), Cache(model, is_paged=is_paged)
    for call, (made, replayed) in zip(CALLS, ((0, 0), (0, 0), (1, 1), (1, 2)), strict=True):
        found = mine.read(*call)
        assert_same(found, plain.read(*call))
        assert (record.made, record.replayed) == (made, replayed)
        assert all(bool(one.any()) for one in found)


def test_what_other_rows_have_read_of_a_slot_s_pages_stays(tmp_path: Path) -> None:
    model = adapted("qwen2", tmp_path)
    captured(model)
    for record in (Recorder(), None):
        cache = Cache(model, is_paged=True, record=record)
        long = prompt_of(2 * PAGE + 9)
        for _ in range(4):
            for one in (*cache.state.keys, *cache.state.values):
                one.fill_(7)
            cache.read([long], [1], {1: PAGE})
            keys = cache.state.read(0, torch.tensor([1]), len(long) - 1)[0]
            assert bool((keys[:, :, :PAGE] == 7).all()) and not bool((keys[:, :, PAGE:] == 7).any())


def test_a_replay_sees_every_change_of_the_adapter() -> None:
    """In bfloat16, where products read rounded copies of the matrices."""
    model = model_of(replace(OWN, targets=ATTENTION + MLP), recomputed=True, dtype="bfloat16")
    captured(model)
    record = Recorder()
    mine, plain, before = Cache(model, is_paged=False, record=record), Cache(model, is_paged=False), list[Tensor]()
    for step in range(5):
        found = mine.read([prompt_of(20)], [0])
        assert_same(found, plain.read([prompt_of(20)], [0]))
        assert not before or not torch.equal(found[-1], before[-1])
        before = found
        with torch.no_grad():
            for matrix in adapters.adapter_of(model).values():
                matrix.mul_(1.5)
        assert record.replayed == max(0, step - 1)


def test_a_pass_without_the_adapter_is_no_graph_of_one_with_it(tmp_path: Path) -> None:
    model = adapted("qwen2", tmp_path)
    captured(model)
    record = Recorder()
    mine, plain = Cache(model, is_paged=False, record=record), Cache(model, is_paged=False)
    for _ in range(3):
        with_it = mine.read([prompt_of(20)], [0])
    with adapters.disabled(model):
        without = mine.read([prompt_of(20)], [0])
        assert_same(without, plain.read([prompt_of(20)], [0]))
    assert record.replayed == 1 and not torch.equal(with_it[-1], without[-1])


def test_other_matrices_get_other_graphs(tmp_path: Path) -> None:
    model = adapted("qwen2", tmp_path)
    captured(model)
    record = Recorder()
    cache = Cache(model, is_paged=False, record=record)
    for _ in range(4):
        cache.read([prompt_of(20)], [0])
    for matrix in adapters.adapter_of(model).values():
        matrix.data = 2 * matrix.data
    cache.read([prompt_of(20)], [0])
    assert record.made == 2


def counting() -> tuple[list[tuple[int, ...]], Callable[[Tensor], None]]:
    seen: list[tuple[int, ...]] = []
    return seen, lambda rows: seen.append(tuple(rows.shape))


def test_only_shapes_that_wait_for_the_processor_and_fit_become_graphs(tmp_path: Path) -> None:
    model = adapted("qwen2", tmp_path)
    captured(model)
    for is_waiting, tokens, made in ((True, 40, 1), (False, 40, 0), (True, 39, 0)):
        measured, record = list[bool](), Recorder()

        def measure(work: Callable[[], Any], is_waiting: bool = is_waiting, told: list[bool] = measured) -> Any:
            told.append(is_waiting)
            return is_waiting, work()

        seen, work = counting()
        passes = Passes(model, work, tokens, record, measure)
        for _ in range(5):
            passes(torch.zeros(2, 20, dtype=torch.long))
        # The first pass compiles kernels, so the second is measured, once.
        assert record.made == made and len(measured) == (tokens == 40) and len(seen) == 5


def test_where_a_graph_cannot_be_made_prompts_are_read_by_launched_kernels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tries = adapted("qwen2", tmp_path), list[int]()
    captured(model)

    def fail(work: Callable[[], Any]) -> Any:
        tries.append(1)
        raise torch.OutOfMemoryError("no room\nmore")

    seen, work = counting()
    passes = Passes(model, work, 1000, fail, lambda work: (True, work()))
    for _ in range(5):
        passes(torch.zeros(2, 20, dtype=torch.long))
    assert len(seen) == 5 and len(tries) == 1
    assert "prompts of 2 x 20 tokens are read without graphs: no room" in caplog.text


def test_where_memory_has_ended_no_prompt_is_read_by_a_graph(tmp_path: Path) -> None:
    model, record = adapted("qwen2", tmp_path), Recorder()
    captured(model)
    passes = Passes(model, counting()[1], 1000, record, lambda work: (True, work()))
    for _ in range(3):
        passes(torch.zeros(2, 20, dtype=torch.long))
    fast_graphs.allow(model, with_graphs=False)
    for _ in range(3):
        passes(torch.zeros(2, 20, dtype=torch.long))
    assert record.replayed == 1


def test_prompts_are_captured_on_another_stream_than_training_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of graphs of one stream share a workspace, and with run.overlap both kinds run at one time."""
    streams: list[Any] = []

    def graph(*_: object, stream: Any, **__: object) -> AbstractContextManager[None]:
        streams.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: (device, object()))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", MagicMock)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    for each in (fast_graphs.capture_stream, warming_stream):
        each.cache_clear()
    model = torch.nn.Linear(1, 1)
    model.device = torch.device("cuda", 1)  # type: ignore[assignment]
    for record in (Passes(model, counting()[1], 10)._record, fast_graphs.Recorder(model.device)):  # type: ignore[arg-type]
        assert record is not None
        record(lambda: None)
    for each in (fast_graphs.capture_stream, warming_stream):
        each.cache_clear()
    (device, one), (other_device, other) = streams
    assert device == other_device == model.device and one is not other


def engine_of(model: Any, record: Recorder | None, monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> GraphEngine:
    """With graphs over its cache if there is a recorder."""

    def made(model: Any, work: Callable[[Tensor], None], most_tokens: int) -> Passes:
        return Passes(model, work, most_tokens, record, lambda work: (True, work()))

    monkeypatch.setattr(reading, "Passes", made)
    return GraphEngine(model, **knobs)


@pytest.mark.parametrize("overcommit", [1.0, 2.0])
def test_rollouts_are_the_same_also_after_the_cache_was_made_anew(
    overcommit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, record = adapted("qwen2", tmp_path), Recorder()
    captured(model)
    plain = GraphEngine(model, max_rows=3, overcommit=overcommit)
    engine, made = engine_of(model, record, monkeypatch, max_rows=3, overcommit=overcommit), list[int]()
    for size in (20, 300):  # the second needs a larger cache
        for _ in range(2):
            requests = [Request(prompt_of(size, seed // 2), seed) for seed in range(16)]
            assert engine.generate(requests, HOW) == plain.generate(requests, HOW)
        made.append(record.made)
        engine.rest()
    assert 0 < made[0] < made[1] and record.replayed > 0


def test_over_a_cache_that_does_not_stay_there_are_no_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, record = adapted("qwen2", tmp_path), Recorder()
    captured(model)
    requests = [Request(prompt_of(20), seed) for seed in range(16)]
    for knobs in ({"keep_bytes": 1}, {"prompt_graph_bytes": 1}):
        engine = engine_of(model, record, monkeypatch, max_rows=2, **knobs)
        for _ in range(3):
            engine.generate(requests, HOW)
            engine.rest()
    assert record.made == 0


def test_graphs_do_not_outlive_their_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, record = adapted("qwen2", tmp_path), Recorder()
    captured(model)
    engine = engine_of(model, record, monkeypatch, max_rows=2)
    gc.collect()
    gc.disable()
    try:
        engine.generate([Request(prompt_of(20, seed), seed) for seed in range(16)], HOW)
        assert record.made and engine._passes is not None
        passes = weakref.ref(engine._passes)
        engine.close()
        assert passes() is None
    finally:
        gc.enable()


def test_short_prompts_are_read_in_passes_of_no_more_tokens_with_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, seen = Cache(adapted("qwen2", tmp_path), is_paged=False), list[torch.Size]()
    cache.passes = lambda rows: seen.append(rows.shape)  # type: ignore[assignment]
    monkeypatch.setattr(cache.decoder, "readable_tokens", lambda: 300)
    cache.read([prompt_of(5 + seed, seed) for seed in range(4)], range(4))
    assert seen == [torch.Size((2, reading.HEAD + fast_graphs.ROUND))] * 2


KERNEL = """
import contextlib, sys, torch
from workers.rollout.graph.prompt_kernels import put

torch.cuda.device_of = lambda tensor: contextlib.nullcontext()
draws = torch.Generator().manual_seed(0)
for dim in (16, 24):
    key = torch.randn(3, 70, 2, dim, generator=draws).transpose(1, 2)
    value = torch.randn(3, 2, 70, dim, generator=draws)
    places = torch.randperm(9 * 64, generator=draws)[: 3 * 70].view(3, 70)
    pages, places = places // 64, places % 64
    caches = [torch.zeros(9, 2, 64, dim) for _ in range(4)]
    put(*caches[:2], pages, places, key, value)
    caches[2][pages, :, places], caches[3][pages, :, places] = key.transpose(1, 2), value.transpose(1, 2)
    assert torch.equal(caches[0], caches[2]) and torch.equal(caches[1], caches[3])
sys.stdout.write("same\\n")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernel_writes_what_pytorch_writes() -> None:
    done = interpreted("-c", KERNEL, timeout=300)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("overcommit", [1.0, 2.0])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_on_a_gpu_rollouts_are_those_behind_prompts_that_were_read_by_launched_passes(
    quantization: str, overcommit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fixed order, which forbids a graph whatever waits for the GPU."""
    if quantization == "nf4":
        pytest.importorskip("bitsandbytes")
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # cuBLAS asks for a variable that is read once a process
    try:
        knobs = replace(OWN, targets=ATTENTION + MLP)
        model = model_of(knobs, recomputed=True, quantization=quantization, device="cuda", dtype="bfloat16")
        engines = [
            GraphEngine(model, max_rows=4, overcommit=overcommit, prompt_graph_bytes=size) for size in (0, sys.maxsize)
        ]
        for step in range(4):
            # Two lengths, which alternate, in rows of two slots each.
            requests = [Request(prompt_of(20 + 130 * (seed // 2 % 2), seed // 2), seed) for seed in range(16)]
            found = []
            for engine in engines:
                engine.reserve(requests, HOW)
                assert engine._passes is not None
                monkeypatch.setattr(engine._passes, "_measured", lambda work: (True, work()))
                found.append(engine.generate(requests, HOW))
                engine.rest()
            assert found[0] == found[1], step
            with torch.no_grad():
                for matrix in adapters.adapter_of(model).values():
                    matrix.mul_(1.1)
        counts = [len(engine._passes._graphs) for engine in engines if engine._passes is not None]
        assert counts[0] == 0 and counts[1] >= 2
    finally:
        torch.use_deterministic_algorithms(was)
