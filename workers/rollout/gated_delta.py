"""One token of the gated delta rule (Yang et al. 2024, arXiv 2412.06464, equation 10) as a single Triton kernel. Import
it only where Triton runs.

transformers computes a step by a dozen operations, each of which reads or writes the whole state: at 64 rows of a Qwen
3.5 that is most of a captured step. Here the state is read once and written once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.models.fused_layers import problem_of

log = logging.getLogger("worker")

NAME = "torch_recurrent_gated_delta_rule"
"""Of the function in the modules of transformers that compute such layers."""
EPS = 1e-6
"""Under the root of the norm of queries and keys, as in transformers."""
COLUMNS = 32
"""Of the state, in one program."""


@contextmanager
def steps_by_kernel(model: Any) -> Iterator[None]:
    """Inside, layers of `model` that compute the gated delta rule do so by the kernel, one token at a time."""
    modules = _modules_of(model) if has_kernel(model.device) else []
    plain = {module: getattr(module, NAME) for module in modules}
    for module in modules:
        setattr(module, NAME, by_kernel(plain[module]))
    try:
        yield
    finally:
        for module in modules:
            setattr(module, NAME, plain[module])


def _modules_of(model: Any) -> list[ModuleType]:
    names = {type(one).__module__ for one in model.modules()}
    return [sys.modules[name] for name in sorted(names) if hasattr(sys.modules.get(name), NAME)]


@cache
def has_kernel(device: torch.device) -> bool:
    """Whether the kernel compiles on `device` and agrees with float64 there; logs the reason once if not."""
    if problem := problem_of(lambda: distance(device, 128, 128) < 1e-4):
        log.warning("gated delta layers decode without their Triton kernel: %s", problem)
    return not problem


def distance(device: torch.device, width: int, columns: int) -> float:
    """How far result and state are from equation 10 in float64, by the norm of each; the larger one."""
    draws = torch.Generator(device).manual_seed(0)
    query, key = (torch.randn(3, 1, 2, width, device=device, generator=draws) for _ in range(2))
    value = torch.randn(3, 1, 4, columns, device=device, generator=draws)
    g, beta = (torch.rand(3, 1, 4, device=device, generator=draws) for _ in range(2))
    state = torch.randn(3, 4, width, columns, device=device, generator=draws)
    q, k = (one.double()[:, 0].repeat_interleave(2, 1) for one in (query, key))  # [B, heads, K]
    q, k = (one / (one.square().sum(-1, keepdim=True) + EPS).sqrt() for one in (q, k))
    s = state.double() * (-g[:, 0]).double().exp()[..., None, None]
    change = (value[:, 0].double() - (s * k[..., None]).sum(-2)) * beta[:, 0].double()[..., None]
    s = s + k[..., None] * change[..., None, :]
    out = (s * q[..., None]).sum(-2) * width**-0.5
    found = step(query, key, value, -g, beta, state, norm=True)[:, 0]
    return max(float((a.double() - b).norm() / b.norm()) for a, b in ((found, out), (state, s)))


def by_kernel(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function of transformers' signature. plain: computes what the kernel cannot."""

    def rule(
        query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, initial_state: Any = None, **others: Any
    ) -> Any:
        """query, key: [B, 1, key heads, K]; value: [B, 1, heads, V]; g, beta: [B, 1, heads]; initial_state: [B, heads,
        K, V] float32, which becomes the state after this token. Returns ([B, 1, heads, V], the state)."""
        if initial_state is None or not _fits(query, key, value, initial_state):
            return plain(query, key, value, g=g, beta=beta, initial_state=initial_state, **others)
        norm = bool(others.get("use_qk_l2norm_in_kernel"))
        return step(query, key, value, g, beta, initial_state, norm=norm), initial_state

    return rule


def _fits(query: Tensor, key: Tensor, value: Tensor, state: Tensor) -> bool:
    width, columns = state.shape[-2:]
    return (
        query.shape[1] == 1
        and state.dtype == torch.float32
        and state.is_contiguous()
        and width == triton.next_power_of_2(width) <= 256
        and columns == triton.next_power_of_2(columns) >= 16
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    )


def step(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, norm: bool) -> Tensor:
    """As `by_kernel`'s; changes `state`. norm: queries and keys are first divided by their lengths."""
    rows, heads, width, columns = state.shape
    out = value.new_empty(rows, 1, heads, columns)
    size = min(COLUMNS, columns)
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        _gated_delta[(rows * heads, columns // size)](
            query,
            key,
            value,
            g.contiguous(),
            beta.contiguous(),
            state,
            out,
            *(stride for one in (query, key, value) for stride in (one.stride(0), one.stride(2))),
            heads,
            heads // key.shape[2],
            width**-0.5,
            EPS,
            WIDTH=width,
            COLUMNS=columns,
            SIZE=size,
            NORM=norm,
            num_warps=4,
        )
    return out


@triton.jit
def _gated_delta(
    query,
    key,
    value,
    g,
    beta,
    state,
    out,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    heads,
    group,
    scale,
    eps,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    NORM: tl.constexpr,
):
    """S = exp(g) S; S += k (beta (v - k^T S)); out = q^T S, for SIZE columns of one head's state."""
    which = tl.program_id(0).to(tl.int64)
    row, head = which // heads, which % heads
    i, j = tl.arange(0, WIDTH), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    k = tl.load(key + row * key_row + head // group * key_head + i).to(tl.float32)
    q = tl.load(query + row * query_row + head // group * query_head + i).to(tl.float32)
    v = tl.load(value + row * value_row + head * value_head + j).to(tl.float32)
    if NORM:
        k = k / tl.sqrt(tl.sum(k * k, 0) + eps)
        q = q / tl.sqrt(tl.sum(q * q, 0) + eps)
    at = state + which * WIDTH * COLUMNS + i[:, None] * COLUMNS + j[None, :]
    s = tl.load(at) * tl.exp(tl.load(g + which).to(tl.float32))
    delta = (v - tl.sum(s * k[:, None], 0)) * tl.load(beta + which).to(tl.float32)
    s += k[:, None] * delta[None, :]
    tl.store(at, s)
    found = tl.sum(s * (q * scale)[:, None], 0)
    tl.store(out + which * COLUMNS + j, found.to(out.dtype.element_ty))
