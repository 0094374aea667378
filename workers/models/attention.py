"""Attention of packed rows by kernels of our own, in the place of transformers' `sdpa`, on a GPU and in 16 bits.

They skip what the mask leaves empty, and their sums are in a fixed order. Whatever they do not take stays with PyTorch.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from profiles.shapes import shape_of
from workers.models.fused_layers import ROUNDED, problem_of

log = logging.getLogger("worker")

DIMS = (16, 32, 64, 128)
"""Of a head, that a block's registers have room for."""


def enable(model: Any) -> None:
    """Where there is a GPU; to be called once the model is on its device."""
    if model.device.type != "cuda":
        return
    try:
        dim = shape_of(model.config.to_dict()).head_dim
    except KeyError:  # an architecture whose sizes have other names
        return
    # Asked before any pass: what is tried would count among the tensors that a checkpointed layer keeps.
    if has_kernels(model.device, dim):
        # transformers' modules find it under this name, and so it is theirs for every model of this process.
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attend


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """query: [R, heads, T, D], key and value: [R, key heads, T, D]; returns [R, T, heads, D]."""
    is_plain = dropout == 0 and all(others.get(name) is None for name in ("softcap", "position_bias", "cache"))
    if attention_mask is None or not is_plain or not _fits(query, key, value, attention_mask):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
        return found
    from workers.models.attention_kernels import Attention

    apply: Any = Attention.apply
    return apply(query, key, value, attention_mask, scaling or query.shape[-1] ** -0.5), None


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> bool:
    rows, _, length, dim = query.shape
    return (
        query.is_cuda
        and query.dtype in ROUNDED
        and query.dtype == key.dtype == value.dtype
        and mask.dtype == torch.bool
        and mask.shape == (rows, 1, length, length)
        and mask.is_contiguous()
        and key.shape[2] == length
        and key.shape[-1] == value.shape[-1] == dim
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        and has_kernels(query.device, dim)
    )


@cache
def has_kernels(device: torch.device, dim: int) -> bool:
    """Whether they compile on `device` for heads of `dim` and agree with PyTorch there; if not, says why once."""
    if problem := problem_of(lambda: _agrees(device, dim)):
        slower = "up to twenty times slower in a fixed order (run.deterministic)"
        log.warning("attention over heads of %d runs without its Triton kernels, %s: %s", dim, slower, problem)
    return not problem


def _agrees(device: torch.device, dim: int) -> bool:
    """Results and gradients with PyTorch's. Raises whatever a compiler does."""
    if dim not in DIMS:
        raise ValueError(f"they are for heads of {', '.join(map(str, DIMS))}")
    from workers.models.attention_kernels import Attention

    generator = torch.Generator(device).manual_seed(0)
    length = 70  # two blocks
    heads = torch.randn(2, 8, length, dim, device=device, generator=generator).bfloat16()
    query, key, value = (one.contiguous().requires_grad_() for one in (heads[:, :4], heads[:, 4:6], heads[:, 6:]))
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril().expand(2, 1, -1, -1).contiguous()
    apply: Any = Attention.apply
    with torch.inference_mode(False), torch.enable_grad():
        out = apply(query, key, value, mask, dim**-0.5)
        keys, values = (one.float().repeat_interleave(2, 1) for one in (key, value))
        expected = scaled_dot_product_attention(query.float(), keys, values, attn_mask=mask).transpose(1, 2)
        weights = torch.randn(out.shape, device=device, generator=generator)
        found, truth = (torch.autograd.grad((one * weights).sum(), (query, key, value)) for one in (out, expected))
    ours, theirs = ([one.detach().float() for one in each] for each in ((out, *found), (expected, *truth)))
    return all(float((a - b).norm()) <= 0.03 * float(b.norm()) for a, b in zip(ours, theirs, strict=True))
