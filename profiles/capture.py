"""Decides from sizes and types whether the engine `native` can capture its decode steps as CUDA graphs. (pure)

The planner asks before a worker exists, and the worker asks again with the real model.
"""

from __future__ import annotations

from collections.abc import Collection

from profiles.description import Architecture
from profiles.written_out import supports as of_kernels

OLDEST = (8, 0)
"""Compute capability of the RTX 30 series, the first that supports bfloat16."""
WIDEST = 256
"""The largest width of a head for which a block of keys and values fits into a multiprocessor."""
LOOKUP_ROWS = 16
"""Rows beyond which a step reads no guesses (`sampling.prompt_lookup_tokens`): they would cost more than they save."""


def supports(architecture: Architecture | None) -> str:
    """Why captured steps cannot compute such a model; empty if they can. architecture: as in `written_out`."""
    return of_kernels(architecture)


def reason_against(
    capability: tuple[int, int],
    dtype: str,
    *,
    head_dims: Collection[int],
    heads: int,
    hidden_size: int,
    intermediate_size: int,
) -> str:
    """Why steps cannot be captured; empty if they can. dtype: of the weights that are not in 4 bits; head_dims: of all
    layers; heads: of queries."""
    if capability < OLDEST:
        return "its kernels need an NVIDIA GPU of the RTX 30 series or newer"
    if dtype != "bfloat16":
        return "its kernels compute in bfloat16"
    if wrong := [dim for dim in head_dims if dim % 8 or dim > WIDEST]:
        return f"its kernels do not support heads of {wrong[0]}: only multiples of 8 up to {WIDEST}"
    # What a product sums over is read in blocks of 64.
    if wrong := [one for one in (hidden_size, intermediate_size, *(heads * dim for dim in head_dims)) if one % 64]:
        return f"its kernels do not support layers with {wrong[0]} inputs: only multiples of 64"
    return ""
