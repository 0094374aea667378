"""Packing of rows for the trainer: time and memory of `packing.pack`, and of a T x T mask instead.

The mask has True for each pair of tokens that attend to each other. `pack` gives attention two numbers per token
instead, from which PyTorch's attention builds a mask on its device, in parts for a long row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

CASES = ((512, 4096, 4), (512, 8064, 4))
"""Tokens of a prompt, tokens of each completion, and number of completions: rows of 16.9k and 32.8k tokens."""
SMALL = ((20, 30, 3),)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks packing", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a short row")
    options = parser.parse_args(arguments)
    print(f"reproduce: python -m benchmarks packing {' '.join(arguments)}")
    print("seconds, MiB that the result holds\n")
    print(f"{'tokens of the row':>18}{'pack':>18}{'whole mask':>18}{'mask in parts':>18}")
    for prompt, completion, count in SMALL if options.small else CASES:
        print(line(prompt, completion, count), flush=True)
    return 0


def line(prompt: int, completion: int, count: int) -> str:
    from profiles.footprint import MASKED_QUERIES
    from workers.models.packing import Unit, pack, visible

    unit = Unit((0,) * prompt, ((0,) * completion,) * count, tuple(range(count)))
    made, packed = timed(lambda: pack([[unit]]))
    held = sum(size_of(getattr(made, name)) for name in made.__dataclass_fields__)
    tokens = made.ids.shape[1]
    mask, whole = timed(lambda: visible(made.segments))
    bounds = [(begin, min(begin + MASKED_QUERIES, tokens)) for begin in range(0, tokens, MASKED_QUERIES)]
    largest, parts = timed(lambda: max(size_of(visible(made.segments, *each)) for each in bounds))
    cells = (cell(packed, held), cell(whole, size_of(mask)), cell(parts, largest))
    return f"{tokens:>18,}" + "".join(f"{one:>18}" for one in cells)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def cell(seconds: float, size: int) -> str:
    return f"{seconds:.3f}, {size / (1 << 20):,.2f}"
