"""Attention over packed rows, in place of transformers' `sdpa`. Segments say which tokens see each other, windows and
soft caps come from the model's description.

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
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from profiles.description import Architecture
from profiles.footprint import MASKED_QUERIES
from profiles.shapes import shape_of
from workers.models.fused_layers import ROUNDED, problem_of
from workers.models.head import capped
from workers.models.packing import Pack, visible
from workers.models.plain import described

log = logging.getLogger("worker")

OWN = "longhaul"
"""Name of our attention in a model that does not take `sdpa`."""
WIDEST = 256
"""The largest width of a head for which a block fits into registers."""


def enable(model: Any) -> None:
    """Let the model take segments in place of a mask. Call it once the model is on its device."""
    architecture = described(model)
    if architecture is None or not architecture.is_compared:
        return
    windows = windows_of(architecture)
    for layer, one in zip(model.model.layers, architecture.layers, strict=True):
        layer.self_attn.window, layer.self_attn.cap = one.window, architecture.attention_cap
        layer.self_attn.mask_number = windows.index(one.window)
    if not model._supports_sdpa:  # of a family that has soft caps
        ALL_ATTENTION_FUNCTIONS.register(OWN, attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(OWN, sdpa_mask)
        model.set_attn_implementation(OWN)
    if model.device.type == "cuda":
        # Try the kernels before any pass: inside a checkpointed layer, the trial's tensors would be saved with the
        # layer's.
        for dim in shape_of(model.config.to_dict()).head_dims:
            has_kernels(model.device, dim)
    # transformers looks attention up by this name, so the change holds for every model of this process.
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend


def windows_of(architecture: Architecture) -> list[int | None]:
    """The different windows of its layers, in order of appearance. (pure)"""
    return list(dict.fromkeys(layer.window for layer in architecture.layers))


def mask_for(model: Any, pack: Pack) -> Tensor:
    """The 4D mask for a pass of `model` over `pack`: segments, with positions if a layer has a window, or bool masks
    [R, W, T, T] that all layers share, one for each window."""
    architecture, segments = described(model), pack.segments
    windows = windows_of(architecture) if architecture is not None else [None]
    if windows != [None]:
        segments = torch.cat((segments, pack.positions[:, None, :, None].int()), dim=-1)  # [R, 1, T, 3]
        if not hasattr(model.model.layers[0].self_attn, "mask_number"):
            enable(model)
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is attend:
        is_for_kernels = segments.is_cuda and model.model.embed_tokens.weight.dtype in ROUNDED
        if is_for_kernels or segments.shape[2] > MASKED_QUERIES:
            return of_one_pass(segments)
    return torch.cat([visible(segments, window=window) for window in windows], dim=1)


def of_one_pass(segments: Tensor) -> Tensor:
    """The same segments, in the same memory, as an object in which the layers of one pass share the lists of blocks
    that their kernels make of them.

    Lists live and die with the object, so a pass over other segments in the same memory has its own. Segments must not
    change between the first layer that reads this object and the last."""
    found: Any = segments.detach()
    found.lists = {}  # transformers hands this very object to every layer, also when it computes one again
    shared: Tensor = found
    return shared


def masked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float | None, cap: float | None
) -> Tensor:
    """softmax(cap(scale * q k^T) under the mask) v, by PyTorch. query: [R, heads, T, D]; key, value: [R, key heads, K,
    D]; mask: bool or additive, [R, 1, T, K]; scale: None is 1 / sqrt(D). Returns [R, heads, T, D]."""
    is_grouped = query.shape[1] != key.shape[1]
    if cap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=is_grouped)
    if is_grouped:
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    scores = capped(query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale), cap)
    if mask is not None:
        # Not -inf: a row of padding sees nothing, and its softmax would be NaN.
        least = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype) @ value


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
    """query: [R, heads, T, D]; key, value: [R, key heads, T, D]; attention_mask: any mask of transformers, or what
    `mask_for` makes. Returns [R, T, heads, D]."""
    if attention_mask is not None and attention_mask.dtype == torch.int32:
        return _over_segments(module, query, key, value, attention_mask, scaling), None
    cap = getattr(module, "cap", None)
    number = getattr(module, "mask_number", None)
    if number is not None and attention_mask is not None and attention_mask.shape[1] > 1:  # a mask for each window
        attention_mask = attention_mask[:, number : number + 1]
    if cap is not None:
        if attention_mask is None:
            attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
            attention_mask = attention_mask.tril(key.shape[2] - query.shape[2])
        return masked(query, key, value, attention_mask, scale=scaling, cap=cap).transpose(1, 2).contiguous(), None
    found: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
    )
    return found


def _over_segments(
    module: Any, query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scaling: float | None
) -> Tensor:
    window, cap = getattr(module, "window", None), getattr(module, "cap", None)
    if _fits(query, key, value, segments):
        from workers.models.attention_kernels import Attention

        apply: Any = Attention.apply
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        lists = getattr(segments, "lists", None)
        found: Tensor = apply(query, key, value, segments, scale, window or 0, cap or 0.0, lists)
        return found

    def part(begin: int, end: int) -> Tensor:
        mask = visible(segments, begin, end, window=window)
        given = query[:, :, begin:end], key[:, :, :end], value[:, :, :end]
        if cap is not None:
            return masked(*given, mask, scale=scaling, cap=cap).transpose(1, 2)
        found: Tensor = sdpa_attention_forward(module, *given, mask, scaling=scaling)[0]
        return found

    length = query.shape[2]
    if length <= MASKED_QUERIES:
        return part(0, length).contiguous()
    # Recompute each part for the gradient; otherwise all masks would stay in memory until then.
    bounds = [(begin, min(begin + MASKED_QUERIES, length)) for begin in range(0, length, MASKED_QUERIES)]
    parts = [checkpoint(part, *each, use_reentrant=False, preserve_rng_state=False) for each in bounds]
    return torch.cat(parts, dim=1)


def _fits(query: Tensor, key: Tensor, value: Tensor, segments: Tensor) -> bool:
    rows, _, length, dim = query.shape
    return (
        query.is_cuda
        and query.dtype in ROUNDED
        and query.dtype == key.dtype == value.dtype
        and segments.shape[:3] == (rows, 1, length)
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
    if dim % 8 or not 0 < dim <= WIDEST:
        raise ValueError(f"they support heads of multiples of 8 up to {WIDEST}")
    from workers.models.attention_kernels import Attention

    generator = torch.Generator(device).manual_seed(0)
    length = 200  # blocks of which all see all, some see some, and none sees any
    heads = torch.randn(2, 8, length, dim, device=device, generator=generator).bfloat16()
    query, key, value = (one.contiguous().requires_grad_() for one in (heads[:, :4], heads[:, 4:6], heads[:, 6:]))
    # A prompt of 64 tokens with completions of 80 and 56.
    segments = torch.zeros(2, 1, length, 2, dtype=torch.int32, device=device)
    segments[:, :, 64:144, 0], segments[:, :, 144:, 0] = 1, 2
    mask = visible(segments)
    apply: Any = Attention.apply
    with torch.inference_mode(False), torch.enable_grad():
        out = apply(query, key, value, segments, dim**-0.5, 0, 0.0)
        keys, values = (one.float().repeat_interleave(2, 1) for one in (key, value))
        expected = scaled_dot_product_attention(query.float(), keys, values, attn_mask=mask).transpose(1, 2)
        weights = torch.randn(out.shape, device=device, generator=generator)
        found, truth = (torch.autograd.grad((one * weights).sum(), (query, key, value)) for one in (out, expected))
    ours, theirs = ([one.detach().float() for one in each] for each in ((out, *found), (expected, *truth)))
    return all(float((a - b).norm()) <= 0.03 * float(b.norm()) for a, b in zip(ours, theirs, strict=True))
