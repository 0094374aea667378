"""A training pass with products in 8 bits beside bfloat16 on a GPU: time, memory, and how far gradients are off.

Random weights of a shape, in NF4 or bfloat16, with an adapter of rank 64 on all layers; rollouts of a prompt of 128
tokens with completions of 512, eight of a prompt, in rows of 2,176 tokens. A pass reads all rollouts, in micro-batches
of 16, forward and backward through the layers and the output head; it is timed as launched, then with CUDA graphs where
these would be captured. "off" and "cosine" compare the gradient of all rollouts with that in bfloat16; "at start" is
how far off the check at the start of a run finds it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

PROMPT, COMPLETION, ANSWERS, ROW = 128, 512, 8, 2176
MICRO_BATCH, REPEATS = 16, 5
SHAPES = ("r1-qwen-1.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-1.7b", "qwen3-4b", "llama-3.2-3b")
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fp8", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["qwen2.5-1.5b", "qwen2.5-3b"])
    parser.add_argument("--rollouts", type=int, default=64, help=f"(64) a multiple of {ANSWERS}")
    parser.add_argument("--quantization", choices=("nf4", "none"), default="nf4")
    args = parser.parse_args(arguments)
    import torch

    from workers.models import fp8

    if not torch.cuda.is_available():
        print("needs a GPU")
        return 2
    if problem := fp8.problem_on(torch.device("cuda", 0)):
        print(problem)
        return 2
    print(f"reproduce: python -m benchmarks fp8 {' '.join(arguments)}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, base: {args.quantization}\n")
    print(f"{'':<24}{'pass, ms':>10}{'graphs, ms':>12}{'peak, GiB':>11}{'off':>8}{'cosine':>9}{'at start':>10}")
    for shape in args.shapes:
        compare(shape, args.rollouts, args.quantization)
    return 0


def compare(shape: str, rollouts: int, quantization: str) -> None:
    import torch

    from profiles.schema import Adapter, Grpo, Model, Optimizer, Profile, Run, Sampling
    from workers.models import fast_graphs, fp8_check
    from workers.models.policy import open_policy

    profile = Profile(
        name="fp8",
        run=Run(worker="grpo", device="cuda"),
        model=Model(
            random_init=shape,  # type: ignore[arg-type]
            dtype="bfloat16",
            quantization=quantization,  # type: ignore[arg-type]
            gradient_checkpointing=True,
            fp8=True,
        ),
        adapter=Adapter(rank=64, alpha=128.0, targets=TARGETS),
        sampling=Sampling(max_prompt_tokens=PROMPT, max_completion_tokens=COMPLETION),
        optimizer=Optimizer(micro_batch_size=MICRO_BATCH, row_tokens=ROW),
        grpo=Grpo(group_size=ANSWERS, groups_per_step=rollouts // ANSWERS),
    )
    model = open_policy(profile, None, torch.device("cuda", 0)).model
    fp8_check.require_layers(model)
    begins = fp8_check.compared(model, profile, ROW)
    draws = torch.Generator("cuda").manual_seed(0)
    matrices, packs = model.fast_runner.stack.matrices(), packs_of(model, rollouts)
    with torch.no_grad():
        for matrix in matrices:
            matrix.normal_(0.0, 0.01, generator=draws)
    exact: list[Any] = []
    for in_fp8 in (False, True):
        model.fast_runner.stack.in_fp8 = in_fp8
        fast_graphs.allow(model, with_graphs=False)
        torch.cuda.reset_peak_memory_stats()
        launched, gradients = timed(model, matrices, packs, profile)
        peak = torch.cuda.max_memory_allocated() / (1 << 30)
        fast_graphs.allow(model, with_graphs=True)
        captured, _ = timed(model, matrices, packs, profile)
        exact = exact or gradients
        off, cosine = fp8_check.distance(gradients, exact)
        start = f"{begins.off:.3f}" if in_fp8 else ""
        name = f"{shape}, {'8 bits' if in_fp8 else 'bfloat16'}"
        print(
            f"{name:<24}{launched:>10.1f}{captured:>12.1f}{peak:>11.2f}{off:>8.3f}{cosine:>9.4f}{start:>10}", flush=True
        )


def packs_of(model: Any, rollouts: int) -> list[Any]:
    """Rollouts of random tokens, packed into micro-batches."""
    import torch

    from workers.models import packing

    draws = torch.Generator().manual_seed(1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(model.config.vocab_size, (count,), generator=draws).tolist())

    prompts = [prompt for prompt in (ids(PROMPT) for _ in range(rollouts // ANSWERS)) for _ in range(ANSWERS)]
    units = packing.units_of(prompts, [ids(COMPLETION) for _ in prompts], ROW)
    return [packing.pack(one).to(model.device) for one in packing.micro_batches(units, MICRO_BATCH, ROW)]


def timed(model: Any, matrices: Any, packs: list[Any], profile: Any) -> tuple[float, list[Any]]:
    """Milliseconds of a pass over all packs, median after three that compile and capture; and its gradient."""
    import torch

    from workers.models.fp8_check import gradients_of

    times, found = [], []
    for _ in range(3 + REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = gradients_of(model, matrices, packs, profile)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[3:]), found
