"""The Triton kernel that puts the keys and values of prompts into a cache. Import it only where Triton runs.

In a fixed order (run.deterministic), PyTorch's own assignment to indexed places sorts them: many launches for each
layer, and in some versions a wait for the GPU, which a CUDA graph does not allow.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton decides the types of a kernel's arguments.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def put(keys: Tensor, values: Tensor, pages: Tensor, places: Tensor, key: Tensor, value: Tensor) -> None:
    """Put key and value, [R, key heads, T, D], into one layer's cache, [pages, key heads, places, D].

    pages, places: where each token goes, [R, T], int64, contiguous. Of tokens that go to one place, any may stay there.
    """
    rows, heads, length, dim = key.shape
    key, value = (one if one.stride(-1) == 1 else one.contiguous() for one in (key, value))
    with torch.cuda.device_of(keys):  # type: ignore[no-untyped-call]  # a kernel runs on the current device
        _put[(rows * length, heads)](
            key,
            value,
            keys,
            values,
            pages,
            places,
            *key.stride()[:3],
            *value.stride()[:3],
            *keys.stride()[:3],
            length,
            D=dim,
            WIDTH=triton.next_power_of_2(dim),
            num_warps=1,
        )


@triton.jit
def _put(
    key,
    value,
    keys,
    values,
    pages,
    places,
    k_row,
    k_head,
    k_token,
    v_row,
    v_head,
    v_token,
    c_page,
    c_head,
    c_place,
    length,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One head of one token. keys and values have the same strides."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = token // length, token % length
    page, place = tl.load(pages + token), tl.load(places + token)
    lane = tl.arange(0, WIDTH)
    inside = lane < D
    to = page * c_page + head * c_head + place * c_place + lane
    found = tl.load(key + row * k_row + head * k_head + column * k_token + lane, mask=inside)
    tl.store(keys + to, found, mask=inside)
    found = tl.load(value + row * v_row + head * v_head + column * v_token + lane, mask=inside)
    tl.store(values + to, found, mask=inside)
