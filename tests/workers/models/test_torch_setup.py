"""Where the segments of PyTorch's allocator may grow; what it does on a card is in `test_memory_gpu.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from profiles.schema import Profile, Sampling
from workers.models.torch_setup import ALLOCATOR_VARIABLES, let_segments_grow


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the allocator was told; a machine's own variables do not count, and a card is always there."""
    found: list[str] = []
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return found


def profile_with(engine: str, *fallback: str) -> Profile:
    return Profile(name="x", sampling=Sampling(engine=engine, fallback=fallback))  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["native", "auto", "hf", "continuous"])
def test_segments_may_grow(engine: str, told: list[str]) -> None:
    let_segments_grow(profile_with(engine))
    assert told == ["expandable_segments:True"]


@pytest.mark.parametrize("engines", [("vllm",), ("vllm", "hf"), ("native", "vllm")])
def test_not_where_a_pool_of_vllm_may_sleep(engines: tuple[str, ...], told: list[str]) -> None:
    let_segments_grow(profile_with(*engines))
    assert told == []


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_what_the_user_said_of_the_allocator_holds(name: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:128")
    let_segments_grow(profile_with("native"))
    assert told == []


def test_without_a_gpu_nothing_is_tried(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    let_segments_grow(profile_with("native"))
    assert told == []


def test_a_driver_that_knows_no_such_segments_is_left_as_it_was(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA driver error: operation not supported\nand more")

    monkeypatch.setattr(torch, "empty", refused)
    let_segments_grow(profile_with("native"))
    assert told == ["expandable_segments:True", "expandable_segments:False"]
