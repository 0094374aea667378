"""While nothing trains, a GPU's free memory says how many rollouts decode side by side; a CPU has no plan to follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiles.footprint import GIB
from profiles.load import load_profile
from profiles.shapes import ARCHITECTURES
from tests.workers.rollout.models import tiny_model
from workers.grpo.measuring import SLICE, slice_of
from workers.rollout import free_rows
from workers.rollout.free_rows import widen
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions

PROFILE = load_profile("grpo-1.5b-8gb", []).profile
ON_A_GPU: Any = SimpleNamespace(
    device=torch.device("cuda"), config=SimpleNamespace(to_dict=lambda: ARCHITECTURES["r1-qwen-1.5b"])
)


def portions(rows: int = 16) -> Portions:
    return Portions(NativeEngine.__new__(NativeEngine), rows)


def test_on_a_cpu_the_rows_stay() -> None:
    engine = portions()
    assert widen(engine, tiny_model(), PROFILE) == engine.max_rows == 16


@pytest.mark.parametrize(
    ("free_gib", "prompt_tokens", "rows"),
    [
        pytest.param(5.58, 0, 64, id="all that 8 GB leave"),
        pytest.param(5.0, 0, 48, id="half a gibibyte less"),
        pytest.param(5.0, 128, 64, id="prompts that are shorter than they may be"),
        pytest.param(0.1, 0, 16, id="never fewer than in training"),
        pytest.param(80, 0, 256, id="never more than pay"),
    ],
)
def test_rows_are_those_that_free_memory_holds(
    monkeypatch: pytest.MonkeyPatch, free_gib: float, prompt_tokens: int, rows: int
) -> None:
    monkeypatch.setattr(free_rows, "free_bytes", lambda device: int(free_gib * GIB))
    engine = portions()
    assert widen(engine, ON_A_GPU, PROFILE, prompt_tokens=prompt_tokens) == engine.max_rows == rows


def test_a_model_of_unknown_sizes_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_rows, "free_bytes", lambda device: 80 * GIB)
    unknown: Any = SimpleNamespace(device=torch.device("cuda"), config=SimpleNamespace(to_dict=dict))
    assert widen(portions(), unknown, PROFILE) == 16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="asks a GPU's allocator")
def test_free_memory_is_what_the_allocator_can_still_hand_out() -> None:
    device = torch.device("cuda", 0)
    before = free_rows.free_bytes(device)
    held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert before - free_rows.free_bytes(device) == pytest.approx(GIB, rel=0.01)
    del held


@pytest.mark.parametrize(
    ("rows", "samples", "problems"), [(16, 8, SLICE), (144, 8, 72), (256, 8, 128), (256, 4, 256), (8, 64, SLICE)]
)
def test_a_slice_of_measuring_fills_its_rows_four_times(rows: int, samples: int, problems: int) -> None:
    assert slice_of(rows, samples) == problems
