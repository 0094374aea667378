"""The kernels that round to 8 bits against plain PyTorch: on a card, or in Triton's interpreter.

The interpreter does not carry when it rounds to e4m3 (31.9 becomes 16), so there kernels store float32, which shows all
but that last step. `python -m tests.workers.models.fp8_kernel_cases` runs them in the interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from workers.models import fp8, nf4

SHAPES = ((144, 192), (256, 64), (16, 320))
"""Outputs and inputs; the first fill no whole tile."""


def linear_of(outputs: int, inputs: int, *, is_nf4: bool, device: str = "cpu") -> Any:
    """What `fp8` reads of a frozen linear layer, with columns and rows of very different size; and the dense weight."""
    draws = torch.Generator().manual_seed(outputs)
    sizes = torch.logspace(-2, 2, outputs)[:, None] * torch.logspace(1, -1, inputs)
    weight = 0.02 * sizes * torch.randn(outputs, inputs, generator=draws)
    base = SimpleNamespace(out_features=outputs, in_features=inputs, bias=None)
    if not is_nf4:
        base.dense = weight.bfloat16().to(device)
        base.weight = base.dense
        return base
    quantized = nf4.quantize(weight)
    base.dense = nf4.dequantize(quantized).to(device)
    base.weight = quantized.packed.to(device)
    base.weight.quant_state = SimpleNamespace(shape=quantized.shape)
    base.float_scales = nf4.scales_of(quantized).to(device)
    return base


def rows(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    from workers.models.fp8_kernels import round_rows

    draws = torch.Generator().manual_seed(0)
    for count, width in ((37, 200), (3, 2048), (5, 16)):
        x = (torch.randn(count, width, generator=draws) * torch.logspace(-12, 3, count)[:, None]).bfloat16().to(device)
        x[1] = 0
        values, scales = x.new_empty(x.shape, dtype=dtype), x.new_empty(count, 1, dtype=torch.float32)
        round_rows(x, values, scales, largest=fp8.LARGEST, least=fp8.LEAST)
        largest = x.float().abs().amax(1, keepdim=True)
        yield f"scales of {count} x {width}", scales, (largest.clamp(min=fp8.LEAST) / fp8.LARGEST)
        yield f"{count} x {width}", values, (x.float() / scales).to(dtype)


def weights(device: str, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    from workers.models.fp8_kernels import round_weight

    for is_nf4 in (False, True):
        for outputs, inputs in SHAPES:
            base = linear_of(outputs, inputs, is_nf4=is_nf4, device=device)
            for is_transposed in (False, True):
                dense = (base.dense.t() if is_transposed else base.dense).float()
                scales = fp8.scales_of(base)[is_transposed]
                values = torch.empty(dense.shape, dtype=dtype, device=device)
                blocks = base.float_scales if is_nf4 else None
                round_weight(base.weight, blocks, scales, values, base.dense.shape, is_transposed=is_transposed)
                name = f"{'NF4' if is_nf4 else 'bfloat16'} {outputs} x {inputs}, transposed: {is_transposed}"
                yield name, values, (dense / scales).to(dtype)


def all_of(device: str, dtype: torch.dtype) -> list[tuple[str, Tensor, Tensor]]:
    """Name, what the kernel stored, what PyTorch computes."""
    return [*rows(device, dtype), *weights(device, dtype)]


if __name__ == "__main__":
    for name, found, expected in all_of("cpu", torch.float32):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0, msg=name)
    sys.stdout.write("same\n")
