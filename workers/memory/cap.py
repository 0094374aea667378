"""A smaller card on a larger one: PyTorch's allocator may have what the cap leaves beside all else a process holds.

What the allocator does not see grows while a worker starts: a context, then libraries with the kernels that they load,
captured graphs. So it is measured again and again (`tighten`), and what the whole card has in use stays within the cap.
The fraction that it sets is PyTorch's for the whole process, and so is the cap.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import dataclass

import torch

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.schema import Profile
from workers.memory.cards import card_of

log = logging.getLogger("worker")

MOST_CONTEXT = GIB
"""No context is larger, with all that is loaded into it: what is more belongs to other programs on the card."""
AHEAD = 64 << 20
"""Of the cap, left for what will be loaded before the next look."""


@dataclass
class Cap:
    """Bytes. foreign: in use by others before this process had a context."""

    whole: int
    foreign: int
    context: int = 0
    """Of this process beside the allocator, the most that was ever seen."""

    @property
    def allocator(self) -> int:
        """What PyTorch's allocator may have."""
        return self.whole - self.context - AHEAD


_cap: Cap | None = None


def limit(cap_gib: float) -> Cap | None:
    """Let this process have what a card with `cap_gib` usable GiB has; before anything is allocated. 0: all there is.

    It binds PyTorch's allocator; a child process or vLLM's own pool is seen by `device` figures alone. Raises
    LonghaulError (GPU) where the cap leaves nothing beside a context.
    """
    global _cap
    if not torch.cuda.is_available():
        return None
    if not cap_gib:
        if _cap is not None:
            torch.cuda.set_per_process_memory_fraction(1.0)
        _cap = None
        return None
    if _cap is None or _cap.whole != int(cap_gib * GIB):
        _cap = Cap(int(cap_gib * GIB), _cap.foreign if _cap else used_by_others())
    torch.cuda.synchronize()  # makes the context
    _cap.context, total = max(_cap.context, _beside(_cap)), torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(allocator_share(_cap, total))
    log.info("memory is capped to %.2f GiB, %.2f of them for the context", cap_gib, _cap.context / GIB)
    return _cap


def held() -> Cap | None:
    """The cap of this process, as it is now."""
    return _cap


def tighten() -> None:
    """Take off the allocator's share what has been loaded beside it since; between phases. Nothing without a cap."""
    # A pool of vLLM's in this process lies beside the allocator too, and cannot be told from what is loaded.
    if _cap is None or "vllm" in sys.modules:
        return
    if (context := _beside(_cap)) <= _cap.context:
        return
    _cap.context = context
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(max(1, _cap.allocator) / total)
    if torch.cuda.memory_reserved() > _cap.allocator:
        torch.cuda.empty_cache()  # what it holds already is not bound by its share


def _beside(cap: Cap) -> int:
    """Bytes that this process holds beside the allocator."""
    free, total = torch.cuda.mem_get_info()
    in_use, reserved = total - free, torch.cuda.memory_reserved()
    if in_use - reserved < cap.foreign:  # others have left, nobody knows how many: what is there counts as ours
        cap.foreign = 0
    return context_bytes(in_use, cap.foreign, reserved)


def share_of_cap(profile: Profile) -> float:
    """What a share of the real card must be multiplied by to be that share of the capped one."""
    if not profile.memory.cap_gib or not torch.cuda.is_available():
        return 1.0
    return min(1.0, profile.memory.cap_gib * GIB / torch.cuda.mem_get_info()[1])


def usable_bytes(device: torch.device) -> int:
    """Of a GPU, what PyTorch's allocator may have."""
    share = float(torch.cuda.get_per_process_memory_fraction(device))
    return int(share * torch.cuda.get_device_properties(device).total_memory)


def context_bytes(in_use: int, foreign: int, reserved: int) -> int:
    """What driver and kernels of this process hold of a card on which `in_use` bytes are taken. (pure)"""
    return min(MOST_CONTEXT, max(0, in_use - foreign - reserved))


def allocator_share(cap: Cap, total: int) -> float:
    """What `set_per_process_memory_fraction` is given on a card of `total` bytes. (pure)"""
    if cap.allocator <= 0:
        raise LonghaulError(
            f"memory.cap_gib = {cap.whole / GIB:g} leaves nothing: a context alone takes {cap.context / GIB:.2f} GiB",
            kept="the run, unchanged",
            next_command="python -m orchestrator run --set memory.cap_gib=4",
            exit_code=ExitCode.GPU,
        )
    return min(1.0, cap.allocator / total)


def used_by_others() -> int:
    """Bytes of the first GPU that are in use before this process has a context; 0 where nobody can be asked."""
    first = card_of(0, os.environ) or "0"
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={first}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return int(answer.stdout.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0
