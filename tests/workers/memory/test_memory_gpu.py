"""The cap and the gauge on a real card; skipped without one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from profiles.footprint import GIB
from workers.memory.phases import CudaGauge, Memory
from workers.models.torch_setup import ALLOCATOR_VARIABLES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CAPPED = """
import torch
from workers.memory import cap
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
from workers.memory import cap
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


GAPS = """
import torch
from profiles.schema import Profile
from workers.memory import cap
from workers.models.torch_setup import let_segments_grow
cap.limit(2.0)
let_segments_grow(Profile(name="x"))
block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
del block
parts = [torch.empty(1 << 27, dtype=torch.uint8, device="cuda") for _ in range(8)]
del parts[:-1]
torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("fits")
"""


@pytest.mark.parametrize(("said", "fits"), [("", ["fits"]), ("expandable_segments:False", [])])
def test_what_is_free_between_tensors_can_be_had_in_one_piece(
    said: str, fits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 GiB of which an eighth is in use makes room for another; not as the allocator is by itself."""
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if said:
        monkeypatch.setenv(ALLOCATOR_VARIABLES[0], said)
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == fits, done.stderr[-2000:]


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
