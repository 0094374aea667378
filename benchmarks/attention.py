"""Attention of one packed row, forward and with gradients: our kernels compared with PyTorch's.

"PyTorch" lets it choose its kernels; "in a fixed order" restricts it to deterministic ones, as `run.deterministic`
needs. Times are of consecutive calls, including launches. Without a GPU both are PyTorch's in float32, which says
nothing about a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

WARM, REPEATS = 3, 20
AWAKE_S = 2.0


class Case(NamedTuple):
    """heads and key_heads of width dim; one row with a prompt and its completions."""

    name: str
    heads: int
    key_heads: int
    dim: int
    prompt: int
    completion: int
    answers: int


CASES = (
    Case("1.5B, 128 + 4 x 512", 12, 2, 128, 128, 512, 4),
    Case("1.5B, 512 + 2 x 512", 12, 2, 128, 512, 512, 2),
    Case("1.5B, 128 + 512", 12, 2, 128, 128, 512, 1),
    Case("0.5B, 2048 + 2 x 1024", 14, 2, 64, 2048, 1024, 2),
)
SMALL = (Case("tiny, 20 + 3 x 30", 4, 2, 16, 20, 30, 3),)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks attention", description=__doc__)
    parser.parse_args(arguments)
    import torch

    is_gpu = torch.cuda.is_available()
    print(f"reproduce: python -m benchmarks attention {' '.join(arguments)}")
    print(f"{torch.cuda.get_device_name() if is_gpu else 'CPU'}, torch {torch.__version__}\n")
    print("microseconds, forward / with gradients; error: of results and gradients, relative to float64")
    print(f"{'':<24}{'tokens':>8}{'PyTorch':>18}{'in a fixed order':>20}{'ours':>16}{'error':>10}")
    was = torch.are_deterministic_algorithms_enabled()
    if is_gpu:
        wake()
    for case in CASES if is_gpu else SMALL:
        print(line(case), flush=True)
    torch.use_deterministic_algorithms(was)
    return 0


def line(case: Case) -> str:
    import torch

    from workers.models import attention
    from workers.models.packing import Unit, pack, visible

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unit = Unit((0,) * case.prompt, ((0,) * case.completion,) * case.answers, tuple(range(case.answers)))
    segments = pack([[unit]]).segments.to(device)
    mask = visible(segments)
    length, generator = segments.shape[2], torch.Generator().manual_seed(0)
    sizes = (case.heads, case.key_heads, case.key_heads)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    made = [torch.randn(1, length, heads, case.dim, generator=generator).to(device, dtype) for heads in sizes]
    inputs = [one.transpose(1, 2).requires_grad_() for one in made]
    grad = torch.randn(1, length, case.heads, case.dim, generator=generator).to(device, dtype)

    def plain(*given: Any) -> Any:
        q, k, v = given
        keys, values = (one.repeat_interleave(case.heads // case.key_heads, 1) for one in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask).transpose(1, 2)

    module: Any = torch.nn.Module()
    module.num_key_value_groups = case.heads // case.key_heads

    def ours(*given: Any) -> Any:
        query, key, value = given
        return attention.attend(module, query, key, value, segments)[0]

    def both(attend: Callable[..., Any], given: list[Any]) -> list[Any]:
        out = attend(*given)
        return [out.detach(), *torch.autograd.grad(out, given, grad.to(out.dtype))]

    cells = []
    for attend, is_ordered in ((plain, False), (plain, True), (ours, True)):
        torch.use_deterministic_algorithms(is_ordered)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        with torch.no_grad():
            forward = microseconds(partial(attend, *inputs))
        cells.append(f"{forward:,.0f} / {microseconds(partial(both, attend, inputs)):,.0f}")
    exact = both(plain, [one.detach().double().requires_grad_() for one in inputs])
    pairs = zip(both(ours, inputs), exact, strict=True)
    error = max(float((one.double() - other).norm() / other.norm()) for one, other in pairs)
    return f"{case.name:<24}{length:>8}{cells[0]:>18}{cells[1]:>20}{cells[2]:>16}{error:>10.1e}"


def microseconds(work: Callable[[], Any]) -> float:
    """Of one call."""
    import torch

    wait: Any = torch.cuda.synchronize if torch.cuda.is_available() else int
    for _ in range(WARM):
        work()
    wait()
    began = time.perf_counter()
    for _ in range(REPEATS):
        work()
    wait()
    return (time.perf_counter() - began) / REPEATS * 1e6


def wake() -> None:
    """Warm up the GPU, which is slow at first after idling."""
    import torch

    square = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.perf_counter() + AWAKE_S
    while time.perf_counter() < end:
        square @ square
        torch.cuda.synchronize()
