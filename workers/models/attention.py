"""Attention over packed rows, in place of transformers' `sdpa`. Segments say which tokens see each other.

On a GPU in 16 bits, our own kernels read the segments, skip empty blocks and add in a fixed order. Elsewhere PyTorch
computes attention under a mask. A mask takes one byte per pair of tokens, so a short row gets one mask for the whole
pass, while a long row gets a new mask for each block of queries.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from profiles.footprint import MASKED_QUERIES
from profiles.shapes import shape_of
from workers.models.fused_layers import ROUNDED, problem_of
from workers.models.packing import visible

log = logging.getLogger("worker")

DIMS = (16, 32, 64, 128)
"""The largest dimension of a head for which a block fits into registers."""


def enable(model: Any) -> None:
    """Let the model take segments in place of a mask. Call it once the model is on its device."""
    try:
        dim = shape_of(model.config.to_dict()).head_dim
    except KeyError:  # an architecture that names its sizes differently
        return
    if model.device.type == "cuda":
        # Try the kernels before any pass: inside a checkpointed layer, the trial's tensors would be saved with the
        # layer's.
        has_kernels(model.device, dim)
    # transformers looks attention up by this name, so the change holds for every model of this process.
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend


def mask_for(model: Any, segments: Tensor) -> Tensor:
    """The 4D mask for a pass of `model`: the segments themselves, or one bool mask if all layers can share it."""
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is not attend:
        return visible(segments)
    is_for_kernels = segments.is_cuda and model.model.embed_tokens.weight.dtype in ROUNDED
    return segments if is_for_kernels or segments.shape[2] > MASKED_QUERIES else visible(segments)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query: [R, heads, T, D]; key, value: [R, key heads, T, D]; attention_mask: any mask of transformers, or segments,
    [R, 1, T, 2] int32 (`packing.Pack`). Returns [R, T, heads, D]."""

    def plain(begin: int, end: int, mask: Tensor | None) -> Tensor:
        given = query[:, :, begin:end], key[:, :, :end], value[:, :, :end]
        return sdpa_attention_forward(module, *given, mask, dropout=dropout, scaling=scaling, **others)[0]

    if attention_mask is None or attention_mask.dtype != torch.int32:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
        return found
    is_plain = dropout == 0 and all(others.get(name) is None for name in ("softcap", "position_bias", "cache"))
    if is_plain and _fits(query, key, value, attention_mask):
        from workers.models.attention_kernels import Attention

        apply: Any = Attention.apply
        return apply(query, key, value, attention_mask, scaling or query.shape[-1] ** -0.5), None
    length = query.shape[2]
    if length <= MASKED_QUERIES or not is_plain:
        return plain(0, length, visible(attention_mask)), None

    def part(begin: int, end: int) -> Tensor:
        return plain(begin, end, visible(attention_mask, begin, end))

    # Recompute each part for the gradient; otherwise all masks would stay in memory until then.
    bounds = [(begin, min(begin + MASKED_QUERIES, length)) for begin in range(0, length, MASKED_QUERIES)]
    parts = [checkpoint(part, *each, use_reentrant=False, preserve_rng_state=False) for each in bounds]
    return torch.cat(parts, dim=1), None


def _fits(query: Tensor, key: Tensor, value: Tensor, segments: Tensor) -> bool:
    rows, _, length, dim = query.shape
    return (
        query.is_cuda
        and query.dtype in ROUNDED
        and query.dtype == key.dtype == value.dtype
        and segments.shape == (rows, 1, length, 2)
        and segments.is_contiguous()
        and key.shape[2] == length
        and key.shape[-1] == value.shape[-1] == dim
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        and has_kernels(query.device, dim)
    )


@cache
def has_kernels(device: torch.device, dim: int) -> bool:
    """Whether the kernels compile on `device` for heads of `dim` and agree with PyTorch there; logs once if not."""
    if problem := problem_of(lambda: _agrees(device, dim)):
        slower = "up to twenty times slower in a fixed order (run.deterministic)"
        log.warning("attention over heads of %d runs without its Triton kernels, %s: %s", dim, slower, problem)
    return not problem


def _agrees(device: torch.device, dim: int) -> bool:
    """Whether results and gradients agree with PyTorch's. Raises whatever the compiler raises."""
    if dim not in DIMS:
        raise ValueError(f"they support heads of {', '.join(map(str, DIMS))}")
    from workers.models.attention_kernels import Attention

    generator = torch.Generator(device).manual_seed(0)
    length = 70  # two blocks
    heads = torch.randn(2, 8, length, dim, device=device, generator=generator).bfloat16()
    query, key, value = (one.contiguous().requires_grad_() for one in (heads[:, :4], heads[:, 4:6], heads[:, 6:]))
    # A prompt of 30 tokens with completions of 25 and 15.
    segments = torch.zeros(2, 1, length, 2, dtype=torch.int32, device=device)
    segments[:, :, 30:55, 0], segments[:, :, 55:, 0] = 1, 2
    mask = visible(segments)
    apply: Any = Attention.apply
    with torch.inference_mode(False), torch.enable_grad():
        out = apply(query, key, value, segments, dim**-0.5)
        keys, values = (one.float().repeat_interleave(2, 1) for one in (key, value))
        expected = scaled_dot_product_attention(query.float(), keys, values, attn_mask=mask).transpose(1, 2)
        weights = torch.randn(out.shape, device=device, generator=generator)
        found, truth = (torch.autograd.grad((one * weights).sum(), (query, key, value)) for one in (out, expected))
    ours, theirs = ([one.detach().float() for one in each] for each in ((out, *found), (expected, *truth)))
    return all(float((a - b).norm()) <= 0.03 * float(b.norm()) for a, b in zip(ours, theirs, strict=True))
