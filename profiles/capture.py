"""Where the engine `native` can capture its decode steps as CUDA graphs, as far as sizes and numbers tell. (pure)

The planner asks before a worker is there, the worker again with the real model.
"""

from __future__ import annotations

from profiles.architecture import supports as of_own_code
from profiles.description import QKV, Architecture

OLDEST = (8, 0)
"""Compute capability of the RTX 30 series, the first with bfloat16."""
HEAD_DIMS = (32, 64, 128, 256)


def supports(architecture: Architecture | None) -> str:
    """Why captured steps do not compute such a model at any window; empty: they do."""
    if architecture is None or not architecture.is_compared:
        return "captured steps were never compared with its architecture"
    if architecture.biases != QKV:
        return "captured steps are for biases on queries, keys and values, and nowhere else"
    return of_own_code(architecture)


def reason_against(
    capability: tuple[int, int], dtype: str, *, head_dim: int, hidden_size: int, intermediate_size: int
) -> str:
    """Why not; empty: nothing speaks against it. dtype: of what is not in 4 bits."""
    if capability < OLDEST:
        return "its kernels need an NVIDIA GPU of the RTX 30 series or newer"
    if dtype != "bfloat16":
        return "its kernels compute in bfloat16"
    if head_dim not in HEAD_DIMS or hidden_size % 64 or intermediate_size % 64:
        return f"its kernels do not fit heads of {head_dim} and layers of {hidden_size}"
    return ""
