"""Decides from sizes and types whether the engine `native` can capture its decode steps as CUDA graphs. (pure)

The planner asks before a worker exists, and the worker asks again with the real model.
"""

from __future__ import annotations

from profiles.description import Architecture
from profiles.written_out import supports as of_kernels

OLDEST = (8, 0)
"""Compute capability of the RTX 30 series, the first that supports bfloat16."""
HEAD_DIMS = (32, 64, 128, 256)


def supports(architecture: Architecture | None) -> str:
    """Why captured steps cannot compute such a model; empty if they can. architecture: as in `written_out`."""
    return of_kernels(architecture)


def reason_against(
    capability: tuple[int, int], dtype: str, *, head_dim: int, hidden_size: int, intermediate_size: int
) -> str:
    """Why steps cannot be captured; empty if they can. dtype: of the weights that are not in 4 bits."""
    if capability < OLDEST:
        return "its kernels need an NVIDIA GPU of the RTX 30 series or newer"
    if dtype != "bfloat16":
        return "its kernels compute in bfloat16"
    if head_dim not in HEAD_DIMS or hidden_size % 64 or intermediate_size % 64:
        return f"its kernels do not support heads of {head_dim} and layers of {hidden_size}"
    return ""
