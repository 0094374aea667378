"""Loss: time and memory of head, log-probs, entropy, loss and gradient: plain, in chunks, and in one pass.

Each line is a separate process, so that none can reuse memory freed by another. Memory is the peak above the inputs
(hidden states and head): resident bytes on a CPU, PyTorch's allocator on a CUDA card. Time is CPU time on a CPU, which
other processes affect less, and wall time on a card. "Plain" is what `score` uses for small vocabularies, "two passes"
is `fused_log_probs`, "one pass" is `fused_policy_loss`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

WARM, REPEATS = 1, 5


class Shape(NamedTuple):
    """n tokens of width h, vocabulary v; frozen: no gradient of the head; chunks: chunk sizes to compare."""

    name: str
    n: int
    h: int
    v: int
    dtype: str
    frozen: bool
    chunks: tuple[int, ...]


CPU = (
    Shape("pocket's micro-batch", 1500, 96, 109, "float32", False, (128, 1500)),
    Shape("8 thousand words", 512, 256, 8192, "float32", False, (128,)),
    Shape("32 thousand words", 512, 256, 32000, "float32", True, (128,)),
    Shape("152 thousand words", 128, 128, 151936, "float32", True, (8, 32)),
)
CUDA = (
    Shape("1.5B, 10 completions of 512", 5120, 1536, 151936, "bfloat16", True, (64, 128, 256, 1024)),
    Shape("the same, head in training", 5120, 1536, 151936, "bfloat16", False, (128, 1024)),
    Shape("0.5B, tied", 4096, 896, 151936, "bfloat16", False, (128, 1024)),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks loss", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="(cuda if available)")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads on a CPU (1)")
    parser.add_argument("--shape", metavar="N,H,V", help="one shape instead of the built-in ones; head frozen")
    parser.add_argument("--dtype", default="float32", help="of --shape (float32)")
    parser.add_argument("--chunk", type=int, default=128, help="of --shape (128)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one:
        print(json.dumps(measure(**json.loads(args.one))))
        return 0
    device = args.device or ("cuda" if has_cuda() else "cpu")
    shapes: tuple[Shape, ...] = CUDA if device == "cuda" else CPU
    if args.shape:
        n, h, v = map(int, args.shape.split(","))
        shapes = (Shape(f"{args.dtype} {args.shape}", n, h, v, args.dtype, True, (args.chunk,)),)
    print(f"reproduce: python -m benchmarks loss {' '.join(arguments)}\n")
    print(f"{device}; median of {REPEATS} after {WARM}; {os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores")
    for shape in shapes:
        head = "frozen" if shape.frozen else "in training"
        print(f"\n{shape.name}: N={shape.n} H={shape.h} V={shape.v} {shape.dtype}, head {head}")
        print(f"  {'way':<14} {'chunk':>6} {'time':>11} {'peak':>12}   loss, norm of the hidden states' gradient")
        for way, chunk in [("plain", 0)] + [(way, c) for way in ("two passes", "one pass") for c in shape.chunks]:
            tell(way, chunk, child(shape, way, chunk, device, args.threads))
    return 0


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def tell(way: str, chunk: int, found: dict[str, Any]) -> None:
    rows = f"{chunk or '-':>6}"
    if "problem" in found:
        print(f"  {way:<14} {rows} {found['problem']}")
        return
    numbers = f"{found['loss']:.5f}, {found['norm']:.5f}"
    print(f"  {way:<14} {rows} {found['seconds'] * 1e3:>8.2f} ms {found['peak'] / 2**20:>8.1f} MiB   {numbers}")


def child(shape: Shape, way: str, chunk: int, device: str, threads: int) -> dict[str, Any]:
    given = shape._asdict() | {"way": way, "chunk": chunk, "device": device, "threads": threads}
    del given["name"], given["chunks"]
    command = [sys.executable, "-m", "benchmarks", "loss", "--one", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"problem": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:90]}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# --- the child: one way, one shape ---------------------------------------------------------------------------------


def measure(
    n: int, h: int, v: int, dtype: str, frozen: bool, way: str, chunk: int, device: str, threads: int
) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden = torch.randn(n, h, device=device, dtype=kind).requires_grad_()
    weight = (torch.randn(v, h, device=device, dtype=kind) * 2 / h**0.5).requires_grad_(not frozen)
    facts = torch.randint(v, (n,), device=device), torch.full((n,), -9.0, device=device), torch.randn(n, device=device)
    clock = time.perf_counter if device == "cuda" else time.process_time
    work = WAYS[way](hidden, weight, *facts, chunk)

    def once() -> tuple[float, float]:
        hidden.grad = weight.grad = None
        began = clock()
        loss = work()
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss)  # also waits for the card
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - began, value

    for _ in range(WARM):
        once()
    seconds = statistics.median(once()[0] for _ in range(REPEATS))
    hidden.grad = weight.grad = None
    base = reset_peak(device)
    _, loss = once()
    peak = peak_of(device) - base
    assert hidden.grad is not None
    return {"seconds": seconds, "peak": peak, "loss": loss, "norm": float(hidden.grad.float().norm())}


def reset_peak(device: str) -> int:
    """Reset the peak and return the bytes in use."""
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    libc = ctypes.CDLL(None)
    # Return freed memory at once (-3 is M_MMAP_THRESHOLD); otherwise this round would reuse earlier rounds' memory.
    libc.mallopt(-3, 1 << 16)
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak_of(device: str) -> int:
    import torch

    return torch.cuda.max_memory_allocated() if device == "cuda" else status("VmHWM")


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def plain(
    hidden: Tensor, weight: Tensor, targets: Tensor, old: Tensor, advantages: Tensor, _: int
) -> Callable[[], Tensor]:
    import torch

    from workers.loss.policy import clipped_token_loss, token_entropy

    def work() -> Tensor:
        logits = torch.nn.functional.linear(hidden, weight).float()
        log_probs = torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)
        with torch.no_grad():
            token_entropy(logits)
        return clipped_token_loss(log_probs, old, advantages, clip_ratio_low=0.2, clip_ratio_high=0.2).losses.mean()

    return work


def two_passes(
    hidden: Tensor, weight: Tensor, targets: Tensor, old: Tensor, advantages: Tensor, chunk: int
) -> Callable[[], Tensor]:
    from workers.loss.fused_loss import fused_log_probs
    from workers.loss.policy import clipped_token_loss

    def work() -> Tensor:
        log_probs, _ = fused_log_probs(hidden, weight, targets, chunk=chunk)
        return clipped_token_loss(log_probs, old, advantages, clip_ratio_low=0.2, clip_ratio_high=0.2).losses.mean()

    return work


def one_pass(
    hidden: Tensor, weight: Tensor, targets: Tensor, old: Tensor, advantages: Tensor, chunk: int
) -> Callable[[], Tensor]:
    from workers.loss.fused_loss import Terms, Tokens, fused_policy_loss

    tokens = Tokens(targets, old, advantages)
    return lambda: fused_policy_loss(hidden, weight, tokens, Terms(), divisor=float(len(old)), chunk=chunk).loss


WAYS: dict[str, Callable[..., Callable[[], Tensor]]] = {"plain": plain, "two passes": two_passes, "one pass": one_pass}
