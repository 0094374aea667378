"""Captured steps of transformers' own modules draw what its `generate` draws, or the engine says why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from profiles.errors import LonghaulError
from tests.workers.families import FAMILIES, WINDOW, bounds_of, model_of
from tests.workers.models.test_families import OWN, REQUESTS, UNSAMPLED, one_thread, profile_of
from tests.workers.rollout.models import decode, tiny_model
from workers.rollout import hf_graphs
from workers.rollout.engine import EngineUnavailable, Request, Rollout, Sampling
from workers.rollout.hf import HfEngine
from workers.rollout.hf_graphs import LOOK_EVERY, HfGraphEngine
from workers.rollout.probe import BOUNDS, probe, single_log_probs
from workers.rollout.select import Fallback, Portions

__all__ = ["one_thread"]

PLAIN = sorted(set(FAMILIES) - OWN - UNSAMPLED)
NOT_CAPTURED = {"mamba", "falcon_mamba", "falcon_h1", "recurrent_gemma"}
NOT_STATIC = {"bloom", "llama, dynamic rope"}
"""Their first step over a static cache fails, or its numbers depend on the length of the cache."""
HOW = Sampling(max_new_tokens=WINDOW + 4, ignore_stop=True)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def compare(found: list[Rollout], expected: list[Rollout], name: str, factor: float = 1.0) -> None:
    assert [one.completion_ids for one in found] == [one.completion_ids for one in expected]
    for one, other, bound in zip(found, expected, bounds_of(name, expected), strict=True):
        apart = (torch.tensor(one.log_probs) - torch.tensor(other.log_probs)).abs()
        assert (apart < factor * bound).all()


@pytest.mark.parametrize("name", sorted(set(PLAIN) - NOT_CAPTURED - NOT_STATIC))
def test_steps_over_a_static_cache_draw_what_generate_draws(name: str) -> None:
    """Prompts of three lengths, completions that outgrow each window, and twice: the second call finds used caches."""
    model = model_of(name)
    engine, expected = HfGraphEngine(model, longest=5 * WINDOW), HfEngine(model).generate(REQUESTS, HOW)
    for _ in range(2):
        compare(engine.generate(REQUESTS, HOW), expected, name, factor=2.0)


@pytest.mark.parametrize("name", sorted(NOT_CAPTURED))
def test_what_transformers_does_not_compile_as_one_graph_is_not_captured(name: str) -> None:
    with pytest.raises(EngineUnavailable, match=r"transformers does not compile a .* as one graph"):
        HfGraphEngine(model_of(name))


def test_a_model_that_fails_over_a_static_cache_is_left_to_the_next_engine() -> None:
    model = model_of("bloom")
    warned: list[str] = []
    engine = Portions(Fallback({"a": lambda: HfGraphEngine(model), "b": lambda: HfEngine(model)}, warned.append))
    assert engine.generate(REQUESTS, HOW) == HfEngine(model).generate(REQUESTS, HOW)
    (told,) = warned
    assert "rollouts now come from the engine b" in told and "its steps cannot be captured (RuntimeError" in told


KERNEL = """
import sys, torch
from workers.rollout.gated_delta import distance
print(max(distance(torch.device("cpu"), *map(int, one.split("x"))) for one in sys.argv[1:]))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernel_of_gated_delta_layers_is_equation_10() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", KERNEL, "16x32", "64x64", "128x16"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert float(done.stdout or "nan") < 1e-5, done.stderr


def distance_of_gated_delta(device: str, width: int, columns: int) -> float:
    from workers.rollout.gated_delta import distance

    return distance(torch.device(device), width, columns)


class Wrong(HfGraphEngine):
    """Forgets what the adapter or a mask adds: its log-probs are a little off."""

    def _side_by_side(self, requests: Any, sampling: Sampling) -> list[Rollout]:
        found = super()._side_by_side(requests, sampling)
        return [
            Rollout(one.prompt_ids, one.completion_ids, tuple(x - 0.01 for x in one.log_probs), one.finish_reason)
            for one in found
        ]


def test_captured_steps_that_are_wrong_are_replaced_by_plain_ones_before_anything_is_trained(tmp_path: Path) -> None:
    model, warned = model_of("qwen3_5_text"), []
    starts = {"a": lambda: Wrong(model), "b": lambda: HfEngine(model)}
    engine = Portions(Fallback(starts, warned.append))  # type: ignore[arg-type]
    facts = probe(model, engine, profile_of(tmp_path), row_tokens=0)
    assert type(engine.engine) is HfEngine and facts["engine_off"] < facts["bound"]
    assert len(warned) == 1 and "its captured steps are wrong: its log-probs are off" in warned[0]


def test_wrong_steps_that_nothing_can_replace_end_the_attempt(tmp_path: Path) -> None:
    model = model_of("qwen3_5_text")
    engine = Portions(Fallback({"a": lambda: Wrong(model)}, lambda text: None))
    with pytest.raises(LonghaulError, match="no rollout engine works; Wrong: its captured steps are wrong"):
        probe(model, engine, profile_of(tmp_path), row_tokens=0)


def test_steps_end_soon_after_the_last_row_has(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = hf_graphs._Steps._step

    def counted(self: Any) -> None:
        steps.append(self.rows)
        step(self)

    monkeypatch.setattr(hf_graphs._Steps, "_step", counted)
    engine = HfGraphEngine(tiny_model(), decode)
    requests = [Request((5, 6), seed) for seed in range(8)]
    rollouts = engine.generate(requests, Sampling(max_new_tokens=400))
    longest = max(len(one.completion_ids) for one in rollouts)
    assert all(one.finish_reason == "stop" for one in rollouts) and longest < 300
    assert longest - 1 <= len(steps) < longest + LOOK_EVERY


def test_caches_are_made_once_for_the_longest_sequence_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = hf_graphs._cache_of

    def counted(model: Any, tokens: int) -> Any:
        made.append(tokens)
        return make(model, tokens)

    engine = HfGraphEngine(tiny_model(), longest=40)
    monkeypatch.setattr(hf_graphs, "_cache_of", counted)
    two = [Request((5, 6, 7), seed) for seed in range(2)]
    for prompt in ((5, 6, 7), (3,), (9, 8)):
        engine.generate([Request(prompt, seed) for seed in range(2)], Sampling(max_new_tokens=8))
        engine.rest()  # on a CPU there is nothing to give back
    assert made == [40]
    engine.generate(two[:1], Sampling(max_new_tokens=8))  # other rows
    engine.generate(two[:1], Sampling(max_new_tokens=60))  # longer ones
    engine.generate(two[:1], Sampling(max_new_tokens=60, greedy=True))  # another draw
    assert made == [40, 40, 63, 63]


# --- on a GPU --------------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "mamba2", "cohere2"])
def test_graphs_draw_what_generate_draws_on_a_gpu(name: str) -> None:
    """Most of the time. Where two words are as likely but for rounding, one of a few hundred draws may differ."""
    model = model_of(name).cuda()
    engine, expected = HfGraphEngine(model, longest=5 * WINDOW), HfEngine(model).generate(REQUESTS, HOW)
    for _ in range(2):
        found = engine.generate(REQUESTS, HOW)
        same = [one.completion_ids == other.completion_ids for one, other in zip(found, expected, strict=True)]
        assert sum(same) >= len(same) - 1
        for one, other, is_same in zip(found, expected, same, strict=True):
            if is_same:
                assert (torch.tensor(one.log_probs) - torch.tensor(other.log_probs)).abs().max() < 5e-3


@needs_gpu
@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_next", "qwen3_moe", "mixtral"])
def test_graphs_have_the_log_probs_of_plain_transformers_in_16_bits(name: str) -> None:
    """Experts are grouped on the GPU in bfloat16 alone; gated delta layers run by our own kernel."""
    model = model_of(name).cuda().bfloat16()
    for rollout in HfGraphEngine(model, longest=5 * WINDOW).generate(REQUESTS, HOW):
        off = (torch.tensor(rollout.log_probs) - single_log_probs(model, rollout, 1.0)).abs()
        assert float(off.mean()) < BOUNDS[torch.bfloat16]


@needs_gpu
@pytest.mark.parametrize(("width", "columns"), [(16, 32), (64, 64), (128, 128), (256, 128)])
def test_the_kernel_of_gated_delta_layers_is_equation_10_on_a_gpu(width: int, columns: int) -> None:
    assert distance_of_gated_delta("cuda", width, columns) < 1e-5


class Waits(torch.nn.Module):
    """A part that reads a number from the GPU, which no graph can."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return found if float(found.sum()) == float("inf") else found + 0


@needs_gpu
def test_a_model_that_waits_for_the_gpu_goes_on_without_graphs() -> None:
    model = model_of("qwen3_moe").cuda()
    expected = HfEngine(model).generate(REQUESTS, HOW)
    model.model.norm = Waits(model.model.norm)
    warned: list[str] = []
    engine = Portions(Fallback({"a": lambda: HfGraphEngine(model), "b": lambda: HfEngine(model)}, warned.append))
    assert [one.completion_ids for one in engine.generate(REQUESTS, HOW)] == [one.completion_ids for one in expected]
    assert len(warned) == 1 and "its steps cannot be captured" in warned[0]
    assert float(torch.ones(3, device="cuda").sum()) == 3.0  # the GPU works on


@needs_gpu
def test_the_cache_leaves_the_gpu_while_the_trainer_works_if_it_has_no_room() -> None:
    model = model_of("qwen3_5_text").cuda()
    for keep, is_kept in ((0, False), (1 << 40, True)):
        engine = HfGraphEngine(model, longest=2000, keep_bytes=keep)
        before = torch.cuda.memory_allocated()
        engine.generate(REQUESTS, HOW)
        assert torch.cuda.memory_allocated() > before + (1 << 20)
        engine.rest()
        assert (torch.cuda.memory_allocated() > before + (1 << 20)) == is_kept
        engine.close()
