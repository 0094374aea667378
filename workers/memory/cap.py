"""Makes a large card act like a smaller one: limits PyTorch's allocator to the cap minus all else the process holds.

Memory outside the allocator grows while a worker starts: a context, then libraries with their kernels, then captured
graphs. So it is measured again between phases (`tighten`), and the process's use of the whole card stays within the
cap. The cap, like PyTorch's memory fraction, applies to the whole process.
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
"""Upper bound of a context with all loaded kernels; anything beyond belongs to other programs on the card."""
AHEAD = 64 << 20
"""Part of the cap kept free for what will be loaded before the next measurement."""


@dataclass
class Cap:
    """Bytes. foreign: used by others before this process had a context."""

    whole: int
    foreign: int
    context: int = 0
    """Highest use of this process outside the allocator so far."""

    @property
    def allocator(self) -> int:
        """What PyTorch's allocator may use."""
        return self.whole - self.context - AHEAD


_cap: Cap | None = None


def limit(cap_gib: float) -> Cap | None:
    """Limit this process to `cap_gib` GiB; 0: no limit. Call it before anything is allocated.

    It binds PyTorch's allocator only; child processes and vLLM's own pool show up in `device` figures alone. Raises
    LonghaulError (GPU) if a context leaves nothing of the cap.
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
    torch.cuda.synchronize()  # creates the context
    _cap.context, total = max(_cap.context, _beside(_cap)), torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(allocator_share(_cap, total))
    log.info("memory is capped to %.2f GiB, %.2f of them for the context", cap_gib, _cap.context / GIB)
    return _cap


def held() -> Cap | None:
    """The current cap of this process."""
    return _cap


def tighten() -> None:
    """Reduce the allocator's share by what has been loaded since; call it between phases. No-op without a cap."""
    # vLLM's pool lies outside the allocator too, and cannot be told apart from loaded kernels.
    if _cap is None or "vllm" in sys.modules:
        return
    if (context := _beside(_cap)) <= _cap.context:
        return
    _cap.context = context
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(max(1, _cap.allocator) / total)
    if torch.cuda.memory_reserved() > _cap.allocator:
        torch.cuda.empty_cache()  # a lower share does not free what is cached already


def _beside(cap: Cap) -> int:
    """Bytes that this process holds outside the allocator."""
    free, total = torch.cuda.mem_get_info()
    in_use, reserved = total - free, torch.cuda.memory_reserved()
    if in_use - reserved < cap.foreign:  # other programs freed an unknown part, so count all use as ours
        cap.foreign = 0
    return context_bytes(in_use, cap.foreign, reserved)


def share_of_cap(profile: Profile) -> float:
    """The factor that turns a share of the real card into the same share of the capped one."""
    if not profile.memory.cap_gib or not torch.cuda.is_available():
        return 1.0
    return min(1.0, profile.memory.cap_gib * GIB / torch.cuda.mem_get_info()[1])


def usable_bytes(device: torch.device) -> int:
    """Bytes of a GPU that PyTorch's allocator may use."""
    share = float(torch.cuda.get_per_process_memory_fraction(device))
    return int(share * torch.cuda.get_device_properties(device).total_memory)


def limits_of(device: torch.device) -> tuple[int, int]:
    """`usable_bytes`, and the bytes of the whole card."""
    return usable_bytes(device), int(torch.cuda.get_device_properties(device).total_memory)


def context_bytes(in_use: int, foreign: int, reserved: int) -> int:
    """What this process's driver context and kernels hold on a card with `in_use` bytes taken. (pure)"""
    return min(MOST_CONTEXT, max(0, in_use - foreign - reserved))


def allocator_share(cap: Cap, total: int) -> float:
    """The argument for `set_per_process_memory_fraction` on a card of `total` bytes. (pure)"""
    if cap.allocator <= 0:
        raise LonghaulError(
            f"memory.cap_gib = {cap.whole / GIB:g} leaves nothing: a context alone takes {cap.context / GIB:.2f} GiB",
            kept="the run, unchanged",
            next_command="python -m orchestrator run --set memory.cap_gib=4",
            exit_code=ExitCode.GPU,
        )
    return min(1.0, cap.allocator / total)


def used_by_others() -> int:
    """Bytes of the first GPU in use before this process has a context; 0 if nothing can report it."""
    first = card_of(0, os.environ) or "0"
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={first}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return int(answer.stdout.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0
