"""Products with the output head on a GPU, for vocabularies of any size: one product, and in blocks as we compute it.

Microseconds of a decode step's logits, and of a chunk of 128 rows in the loss: logits forward, and the gradient of the
hidden states backward. Weights are random bfloat16.
"""

from __future__ import annotations

import argparse
from functools import partial

from benchmarks.families import median

CHUNK = 128
"""Rows of the loss."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks head", description=__doc__)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[49_159, 49_160, 100_278])
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64], help="of a decode step")
    args = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("needs a GPU")
        return 2
    print(f"reproduce: python -m benchmarks head {' '.join(arguments)}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, hidden size {args.hidden}\n")
    print(f"{'vocabulary':>10}  {'what':<22}{'one product, us':>16}{'in blocks, us':>15}")
    for vocabulary in args.vocabularies:
        for what, (one, blocks) in timed(vocabulary, args.hidden, args.rows).items():
            print(f"{vocabulary:>10}  {what:<22}{one:>16.0f}{blocks:>15.0f}", flush=True)
    return 0


def timed(vocabulary: int, hidden: int, rows: list[int]) -> dict[str, tuple[float, float]]:
    """What is computed -> microseconds as one product, and in blocks."""
    import torch
    from torch.nn.functional import linear

    from workers.head_products import logits_buffer, times_head
    from workers.loss.fused_kernels import logits_into, times_weight

    weight = torch.randn(vocabulary, hidden, device="cuda", dtype=torch.bfloat16)
    found = {}
    for count in rows:
        x = torch.randn(count, hidden, device="cuda", dtype=torch.bfloat16)
        ways = partial(linear, x, weight), partial(times_head, x, weight)
        found[f"step of {count} rows"] = median(ways[0], 30), median(ways[1], 30)
    x = torch.randn(CHUNK, hidden, device="cuda", dtype=torch.bfloat16)
    plain, padded = torch.empty(CHUNK, vocabulary, device="cuda"), logits_buffer(CHUNK, weight, torch.float32)
    dz = plain.normal_().bfloat16()
    dz_padded = logits_buffer(CHUNK, weight, torch.bfloat16).copy_(dz)
    found["loss, forward"] = (
        median(lambda: torch.mm(x, weight.t(), out_dtype=torch.float32, out=plain), 20),
        median(lambda: logits_into(padded, x, weight, None, 1.0), 20),
    )
    found["loss, backward"] = (
        median(lambda: torch.mm(dz, weight, out_dtype=torch.float32), 20),
        median(lambda: times_weight(dz_padded, weight), 20),
    )
    return found


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
