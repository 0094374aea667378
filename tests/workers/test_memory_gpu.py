"""The cap and the gauge on a real card; skipped without one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from profiles.footprint import GIB
from workers.memory import CudaGauge, Memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CAPPED = """
import torch
from workers import cap
cap.limit(2.0)
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("capped")
"""


def test_a_cap_binds_the_allocator_and_leaves_room_for_the_context() -> None:
    """2 GiB less a context hold one GiB and not two; in a process of its own, as a cap is for good."""
    done = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split()[:1] == ["capped"], done.stderr[-2000:]


WHOLE = """
import torch
from workers import cap
others = cap.used_by_others()
held = cap.limit(3.0)
for size in (64, 512, 2048):
    x = torch.randn(size, size, device="cuda")
    (x @ x).sum().item()  # loads a library, which takes memory beside the allocator's
    cap.tighten()
blocks = []
try:
    while True:
        blocks.append(torch.empty(1 << 24, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    free, total = torch.cuda.mem_get_info()
    print((total - free - others) / 2**30, held.context / 2**30)
"""


def test_all_that_a_process_has_of_the_card_stays_within_the_cap() -> None:
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    in_use, context = map(float, done.stdout.split())
    assert 2.8 < in_use <= 3.0 and context > 0.1


def test_peaks_are_those_of_the_allocator_and_the_device_holds_more() -> None:
    memory = Memory(CudaGauge())
    torch.cuda.empty_cache()
    with memory.phase("train"):
        block = torch.empty(GIB // 2, dtype=torch.uint8, device="cuda")
        del block
    with memory.phase("rollout"):
        pass
    found = memory.take()
    assert found["memory/train/allocated"] >= GIB // 2 > found["memory/rollout/allocated"]
    assert found["memory/train/allocated"] <= found["memory/train/reserved"] <= found["memory/train/device"]
