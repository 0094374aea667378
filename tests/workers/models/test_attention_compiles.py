"""The Triton kernels of attention compile for every generation of GPU, which need not be there."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

from tests.workers.rollout.test_kernels_compile import SHARED_BYTES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets its kernels"),
    pytest.mark.timeout(300),
]
KERNELS = ["_attention_flags", "_attention_lists", "_attention", "_attention_queries", "_attention_keys"]
LAUNCHES = ["_attention_flags", *["_attention_lists"] * 2, *KERNELS[2:]]  # one list a side


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(
    ("heads", "key_heads", "dim", "window", "cap"),
    [(14, 2, 64, 0, 0.0), (12, 2, 128, 0, 0.0), (4, 1, 256, 512, 0.0), (8, 4, 128, 90, 50.0), (5, 1, 96, 0, 0.0)],
)
def test_attention_compiles_for(
    heads: int, key_heads: int, dim: int, window: int, cap: float, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workers.rollout import compile_cases
    from workers.models import attention_kernels

    found: list[tuple[str, Any]] = []
    monkeypatch.setitem(compile_cases.TYPES, torch.uint8, "*u8")
    for name in KERNELS:
        real = getattr(attention_kernels, name)
        kernel = compile_cases.Compiling(real, capability, lambda name, code: found.append((name, code)))
        monkeypatch.setattr(attention_kernels, name, kernel)
    length = 200
    made = [torch.zeros(1, length, count, dim, dtype=torch.bfloat16) for count in (heads, key_heads, key_heads)]
    given = [one.transpose(1, 2).requires_grad_() for one in made]
    segments = torch.zeros(1, 1, length, 3 if window else 2, dtype=torch.int32)
    apply: Any = attention_kernels.Attention.apply
    apply(*given, segments, dim**-0.5, window, cap).sum().backward()
    assert [name for name, _ in found] == LAUNCHES
    assert all(code.metadata.shared <= SHARED_BYTES[capability] for _, code in found)
