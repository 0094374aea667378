"""Which device a worker computes on, and what is set for its whole process before anything is made there."""

from __future__ import annotations

import logging
import os

import torch

from profiles.schema import Profile
from workers.memory import cap

log = logging.getLogger("worker")

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""What a user may have said of PyTorch's allocator; then that holds."""


def device_of(profile: Profile) -> torch.device:
    wanted = profile.run.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def set_up_torch(profile: Profile, *, isolate: bool) -> None:
    """What holds for the whole process; before anything is allocated on a GPU."""
    device = device_of(profile)
    if device.type == "cuda":
        cap.limit(profile.memory.cap_gib)
        let_segments_grow(profile)
    if profile.run.gpus > 1 and device.type == "cpu":  # its ranks share the cores
        torch.set_num_threads(max(1, (profile.run.threads or os.cpu_count() or 1) // profile.run.gpus))
    elif profile.run.threads:
        torch.set_num_threads(profile.run.threads)
    if profile.run.deterministic or isolate:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else matrix products differ from run to run
        # Only warned, attention would still add its gradients in whatever order its blocks end.
        torch.use_deterministic_algorithms(True)
        # Without it every new tensor is filled with NaN first: a search for bugs, and a tenth of a step.
        torch.utils.deterministic.fill_uninitialized_memory = isolate  # type: ignore[attr-defined]
    torch.autograd.set_detect_anomaly(isolate)


def let_segments_grow(profile: Profile) -> None:
    """Let PyTorch's allocator put together what is free between tensors: a tenth of a small card was lost to gaps.

    A pool of vLLM's that can sleep bears no such segments. Where the driver knows none, all stays as it was.
    """
    if not torch.cuda.is_available() or any(os.environ.get(name) for name in ALLOCATOR_VARIABLES):
        return
    if "vllm" in (profile.sampling.engine, *profile.sampling.fallback):
        return
    change = torch._C._accelerator_setAllocatorSettings
    change("expandable_segments:True")
    try:
        torch.empty(1, device="cuda")
    except RuntimeError as error:
        change("expandable_segments:False")
        log.info("memory that is free between tensors stays so: %s", str(error).splitlines()[0])
