"""What is known before vLLM is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.schema import Vllm
from workers.rollout.vllm_limits import GIB, Device, Need, cache_bytes_per_token, refusal, room_for

CARD = Device("a card", (8, 6), 8 * GIB, 7 * GIB)
NEED = Need(weight_bytes=GIB, cache_bytes_per_token=12_288, sequence_tokens=1024)  # a model of 0.5B in bfloat16
KNOBS = Vllm(gpu_memory_utilization=0.4)


@pytest.mark.parametrize(
    ("device", "knobs", "need", "reason"),
    [
        pytest.param(CARD, KNOBS, NEED, "", id="nothing speaks against it"),
        pytest.param(None, KNOBS, NEED, "needs an NVIDIA GPU", id="no GPU"),
        pytest.param(CARD, KNOBS, replace(NEED, adapter_rank=513), "above the largest", id="too wide an adapter"),
        pytest.param(CARD, KNOBS, replace(NEED, adapter_rank=512), "", id="the widest one"),
        pytest.param(replace(CARD, capability=(6, 1)), KNOBS, NEED, "6.1, it needs 7.0", id="an old GPU"),
        pytest.param(replace(CARD, capability=(7, 5)), KNOBS, NEED, 'vllm.dtype = "float16"', id="no bfloat16"),
        pytest.param(replace(CARD, capability=(7, 5)), Vllm(dtype="float16"), NEED, "", id="but float16"),
        pytest.param(
            CARD, Vllm(gpu_memory_utilization=0.1), NEED, "gpu_memory_utilization to 0.14 at least",
            id="too small a share",
        ),
        pytest.param(CARD, KNOBS, replace(NEED, weight_bytes=9 * GIB), "too small for the model", id="too small a GPU"),
        pytest.param(
            replace(CARD, free_bytes=2 * GIB), KNOBS, NEED, "2.0 GiB are free beside the trainer: set it below 0.25",
            id="the trainer has the room",
        ),
    ],
)  # fmt: skip
def test_why_it_cannot_start(device: Device | None, knobs: Vllm, need: Need, reason: str) -> None:
    found = refusal(device, knobs, need)
    assert reason in found and bool(reason) == bool(found)


def test_it_works_beside_one_process_only() -> None:
    assert "this one has 4" in refusal(CARD, KNOBS, NEED, num_processes=4)


def test_the_cache_of_a_known_shape() -> None:
    assert cache_bytes_per_token(width=28 * 2 * 128, dtype="bfloat16") == 28_672
    assert cache_bytes_per_token(width=24 * 2 * 64, dtype="float32") == 24_576


@pytest.mark.parametrize(("rank", "size"), [(1, 8), (16, 16), (17, 32), (512, 512)])
def test_adapters_get_the_next_size(rank: int, size: int) -> None:
    assert room_for(rank) == size


def test_an_adapter_larger_than_all_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 513"):
        room_for(513)
