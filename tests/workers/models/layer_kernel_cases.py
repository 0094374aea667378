"""The kernels of written-out layers against float64, forward and backward: on a card, or in Triton's interpreter.

`python -m tests.workers.models.layer_kernel_cases` runs all of them in the interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, rms_norm, silu

from workers.models.fused_layers import rotate

SLOPES = (0.9, 0.7, 0.5, -1e-6)


def by_hand(x: Tensor, kind: str) -> Tensor:
    if kind == "silu":
        return silu(x)
    if kind == "gelu_pytorch_tanh":
        return gelu(x, approximate="tanh")
    if kind == "relu2":
        return relu(x).square()
    above, below, beta, eps = SLOPES
    return torch.where(x > 0, above * x * x, (torch.expm1(x.clamp(max=eps)) - x) * below) + beta * x


def turned(
    query: Tensor, key: Tensor, weights: tuple[Tensor, Tensor], angles: Tensor, growth: Tensor, turn: Any
) -> Iterator[Tensor]:
    for x, weight, is_query in ((query, weights[0], True), (key, weights[1], False)):
        scale = weight + 1 if turn.plus_one else weight
        if turn.norm == "head":
            x = rms_norm(x, x.shape[-1:], scale, turn.eps)
        if turn.norm == "whole":
            flat = x.transpose(1, 2).flatten(2)
            x = rms_norm(flat, flat.shape[-1:], scale, turn.eps).unflatten(2, (-1, x.shape[-1])).transpose(1, 2)
        if turn.rotated:
            x = rotate(x, *angles[:, :, None], turn.is_interleaved)
        yield x * growth[:, None, :, None] if is_query else x


def differences(
    ours: Callable[..., Any], exact: Callable[..., Any], given: list[Tensor], device: str, dtype: torch.dtype
) -> list[float]:
    """Of results and of gradients, each by the norm of the exact one."""
    found = []
    for function, kind in ((ours, dtype), (exact, torch.float64)):
        leaves = [one.detach().to(device, dtype).to(kind).requires_grad_() for one in given]
        outs = function(*leaves)
        outs = [outs] if isinstance(outs, Tensor) else list(outs)
        draws = torch.Generator().manual_seed(5)
        upstream = [torch.randn(out.shape, generator=draws).to(device, dtype).to(kind) for out in outs]
        found.append([*outs, *torch.autograd.grad(outs, leaves, upstream)])
    return [float(((a.double() - b).norm() / b.norm()).detach()) for a, b in zip(*found, strict=True)]


def turns(device: str, dtype: torch.dtype) -> Iterator[tuple[str, list[float]]]:
    from workers.models.layer_kernels import Turn, Turned

    # heads, key heads, width, rotated, interleaved, norm, plus one, whether queries grow
    for heads, key_heads, width, rotated, is_interleaved, norm, plus_one, does_grow in (
        (4, 2, 16, 16, False, "head", False, False), (3, 1, 24, 24, False, "head", True, False),
        (4, 2, 16, 8, True, "", False, False), (5, 1, 40, 24, False, "whole", False, False),
        (4, 4, 16, 0, False, "head", False, False), (2, 1, 16, 16, False, "", False, True),
        (3, 3, 16, 16, True, "whole", True, True),
    ):  # fmt: skip
        draws = torch.Generator().manual_seed(width)
        given = [torch.randn(2, 3, count, width, generator=draws).transpose(1, 2) for count in (heads, key_heads)]
        of_norm = [count * width if norm == "whole" else width for count in (heads, key_heads)]
        weights = [torch.rand(one, generator=draws).to(device, dtype) + 0.5 for one in of_norm]
        phases = torch.rand(1, 3, max(rotated, 2) // 2, generator=draws).repeat(1, 1, 2) * 6
        angles = torch.stack((phases.cos(), phases.sin())).to(device, dtype)
        growth = (1 + torch.rand(1, 3, generator=draws)).to(device) if does_grow else torch.ones(1, 3, device=device)
        turn = Turn(norm, 1e-5, plus_one, rotated, is_interleaved)
        apply: Any = Turned.apply

        def ours(
            query: Tensor, key: Tensor, weights: Any = weights, angles: Any = angles, growth: Any = growth,
            turn: Any = turn, does_grow: bool = does_grow, apply: Any = apply,
        ) -> Any:  # fmt: skip
            pair = weights if turn.norm else (None, None)
            return apply(query, key, *pair, angles if turn.rotated else None, growth if does_grow else None, turn)

        def exact(
            query: Tensor, key: Tensor, weights: Any = weights, angles: Any = angles, growth: Any = growth,
            turn: Any = turn,
        ) -> Any:  # fmt: skip
            pair = weights[0].double(), weights[1].double()
            return tuple(turned(query, key, pair, angles.double(), growth.double(), turn))

        yield f"{norm or 'no norm'}, {rotated} of {width}", differences(ours, exact, given, device, dtype)


def activations(device: str, dtype: torch.dtype) -> Iterator[tuple[str, list[float]]]:
    from workers.models.layer_kernels import Activated, Gated, GatedPair

    gated: Any = Gated.apply
    of_pair: Any = GatedPair.apply
    alone: Any = Activated.apply
    slopes = torch.tensor(SLOPES, device=device)
    draws = torch.Generator().manual_seed(0)
    first, second = 2 * torch.randn(2, 3, 40, 24, generator=draws)
    for kind in ("silu", "gelu_pytorch_tanh"):
        exact = lambda gate, up, kind=kind: by_hand(gate, kind) * up  # noqa: E731
        ours = lambda gate, up, kind=kind: gated(gate, up, kind)  # noqa: E731
        yield kind, differences(ours, exact, [first, second], device, dtype)
        both = lambda x, kind=kind: by_hand(x.chunk(2, -1)[0], kind) * x.chunk(2, -1)[1]  # noqa: E731
        pair = lambda x, kind=kind: of_pair(x, kind)  # noqa: E731
        yield f"{kind} of one layer", differences(pair, both, [torch.cat((first, second), -1)], device, dtype)
    for kind in ("relu2", "xielu"):
        ours = lambda x, kind=kind: alone(x, slopes, kind)  # noqa: E731
        yield kind, differences(ours, lambda x, kind=kind: by_hand(x, kind), [first], device, dtype)


def norms(device: str, dtype: torch.dtype) -> Iterator[tuple[str, list[float]]]:
    from workers.models.layer_kernels import Norm

    apply: Any = Norm.apply
    # Rows of two axes, and more of them than the programs of a weight's gradient take at once
    for shape, width in (((2, 5), 72), ((1030, 1), 600), ((3, 7, 4), 24)):
        given = [torch.randn(*shape, width), torch.rand(width) + 0.5]
        for plus_one in (False, True):
            ours = lambda x, weight, plus_one=plus_one: apply(x, weight, 1e-5, plus_one)  # noqa: E731
            exact = lambda x, weight, plus_one=plus_one: rms_norm(x, weight.shape, weight + plus_one, 1e-5)  # noqa: E731
            yield f"norm of {width}, plus one: {plus_one}", differences(ours, exact, given, device, dtype)
            frozen = given[1].to(device, dtype)
            alone = lambda x, frozen=frozen, ours=ours: ours(x, frozen)  # noqa: E731
            truth = lambda x, frozen=frozen, exact=exact: exact(x, frozen.double())  # noqa: E731
            yield f"frozen norm of {width}, plus one: {plus_one}", differences(alone, truth, given[:1], device, dtype)


def all_of(device: str, dtype: torch.dtype) -> list[tuple[str, list[float]]]:
    return [*turns(device, dtype), *activations(device, dtype), *norms(device, dtype)]


if __name__ == "__main__":
    for name, off in all_of("cpu", torch.float32):
        assert max(off) < 2e-6, (name, off)
    sys.stdout.write("same\n")
