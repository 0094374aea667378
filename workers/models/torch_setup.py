"""Chooses the device of a worker and applies settings for the whole process before anything is allocated."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from profiles.schema import Profile
from workers.memory import cap

log = logging.getLogger("worker")

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables by which a user configures PyTorch's allocator; if one is set, it is left as it is."""


def device_of(profile: Profile) -> torch.device:
    wanted = profile.run.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def reason_against(device: torch.device) -> str:
    """Why our own code must not compute on `device`; empty if it may."""
    if device.type == "cuda" and (version := torch.version.hip):
        return f"the GPU is AMD's (ROCm {version}), and our kernels are for NVIDIA's"
    return ""


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, `device` is the current GPU of this thread: kernels are launched and captured there. Nothing on a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def set_up_torch(profile: Profile, *, isolate: bool) -> None:
    """Process-wide settings. Call it before anything is allocated on a GPU."""
    device = device_of(profile)
    if device.type == "cuda":
        cap.limit(profile.memory.cap_gib)
        let_segments_grow(profile)
    if profile.run.gpus > 1 and device.type == "cpu":  # the ranks of a host share its cores
        torch.set_num_threads(max(1, (profile.run.threads or os.cpu_count() or 1) // profile.run.gpus))
    elif profile.run.threads:
        torch.set_num_threads(profile.run.threads)
    if profile.run.deterministic or isolate:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise matrix products vary between runs
        # With a warning only, attention would still add gradients in no fixed order.
        torch.use_deterministic_algorithms(True)
        # The default fills every new tensor with NaN: useful to find bugs, but it costs a tenth of a step.
        torch.utils.deterministic.fill_uninitialized_memory = isolate  # type: ignore[attr-defined]
    torch.autograd.set_detect_anomaly(isolate)


def let_segments_grow(profile: Profile) -> None:
    """Let PyTorch's allocator merge free memory between tensors. Gaps took a tenth of a small card.

    vLLM's sleep mode cannot use expandable segments. If the driver does not support them, nothing changes.
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
        log.info("free memory between tensors cannot be merged: %s", str(error).splitlines()[0])
