"""The Triton kernels of norms with their gradients compile for every generation of GPU, which need not be there."""

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
KERNELS = ["_norm", "_norm_backward", "_norm_weight"]


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(
    ("width", "dtype"), [(896, torch.float32), (5120, torch.float32), (128, torch.bfloat16), (72, torch.bfloat16)]
)
def test_a_trained_norm_compiles_for(
    width: int, dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the residual stream, and of heads."""
    from tests.workers.rollout.compile_cases import Compiling
    from workers.models import layer_kernels

    found: list[tuple[str, Any]] = []
    for name in KERNELS:
        kernel = Compiling(getattr(layer_kernels, name), capability, lambda name, code: found.append((name, code)))
        monkeypatch.setattr(layer_kernels, name, kernel)
    x = torch.zeros(3, width, dtype=dtype, requires_grad=True)
    weight = torch.zeros(width, dtype=torch.bfloat16, requires_grad=True)
    apply: Any = layer_kernels.Norm.apply
    apply(x, weight, 1e-6, True).sum().backward()
    assert [name for name, _ in found] == KERNELS
    assert all(code.metadata.shared <= SHARED_BYTES[capability] for _, code in found)
