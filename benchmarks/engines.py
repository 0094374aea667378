"""Compares rollout engines on this machine: tokens per second, and the error of their log-probs.

The model has the shape --shape and random weights. Every engine gets the same requests, once to warm up and then
--repeats times. `diff` compares with the trainer's own forward pass over the same tokens. An engine that cannot start
gets a line with the reason. --adapter-rank adds LoRA adapters to the model.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from profiles.schema import Adapter, Vllm
from profiles.task_kinds import DEDUCTION
from workers.azr.importance import rescore
from workers.azr.rows import Row
from workers.models import random_init
from workers.models.adapters import adapter_of, inject
from workers.models.load import Tokenizer
from workers.rollout.engine import EngineUnavailable, Request, Rollout, RolloutEngine, Sampling

ENGINES = ("native", "hf", "hf-graphs", "continuous", "vllm")
"""`hf` without CUDA graphs is what runs where transformers cannot compile a model as one graph."""
GIB = 2**30
SHAPES = random_init.ARCHITECTURES


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="qwen2-tiny")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--prompts", type=int, default=8, help="different prompts (8)")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of each prompt (8)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--completion-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2, help="timed runs of each engine, after a warm-up (2)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--adapter-rank", type=int, default=0)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.3, help="of vLLM (0.3)")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    args = parser.parse_args(arguments)
    model, tokenizer = make_model(args)
    requests = make_requests(args, model.config.vocab_size)
    facts = {"model": describe(model, args), "machine": machine(), "options": {**vars(args), "json": None}}
    print(
        f"{facts['model']}\n{facts['machine']}\n{len(requests)} rollouts of {args.prompt_tokens} + "
        f"{args.completion_tokens} tokens, {args.prompts} prompts\n"
    )
    print("\n".join(head()), flush=True)
    found: list[dict[str, Any]] = []
    for name in args.engines:  # each as soon as it is there: a call that is cut off keeps what it has
        found.append({"engine": name} | measure(name, model, tokenizer, requests, args))
        print(line(found[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(facts | {"engines": found}, indent=1))
    return 0


def make_model(args: argparse.Namespace) -> tuple[Any, Tokenizer]:
    backend = random_init.byte_tokenizer()
    config = random_init.config_of(args.shape, backend.token_to_id(random_init.EOS))
    torch.manual_seed(0)
    with torch.device(args.device):
        make: Any = transformers.AutoModelForCausalLM.from_config
        model: Any = make(config, dtype=getattr(torch, args.dtype), attn_implementation="sdpa")
    model = model.to(args.device).eval()
    with tempfile.TemporaryDirectory(prefix="longhaul-bench-") as folder:
        backend.save(str(Path(folder) / "tokenizer.json"))
        tokenizer = Tokenizer(Path(folder))
    if args.adapter_rank:
        inject(model, Adapter(rank=args.adapter_rank, alpha=2 * args.adapter_rank), 0)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in adapter_of(model).items():
            if ".lora_B." in name:  # initially zero, so that the adapter would have no effect
                parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.01).to(parameter)
    return model, tokenizer


def make_requests(args: argparse.Namespace, vocabulary: int) -> list[Request]:
    draws = random.Random(0)
    prompts = [tuple(draws.randrange(vocabulary) for _ in range(args.prompt_tokens)) for _ in range(args.prompts)]
    return [Request(prompt, draws.randrange(2**62)) for prompt in prompts for _ in range(args.group_size)]


def start(name: str, model: Any, tokenizer: Tokenizer, args: argparse.Namespace) -> RolloutEngine:
    if name == "native":
        from workers.rollout.select import native_engine

        return native_engine(model, None)
    if name == "hf":
        from workers.rollout.hf import HfEngine

        return HfEngine(model)
    if name == "hf-graphs":
        from workers.rollout.hf_graphs import HfGraphEngine

        return HfGraphEngine(model, longest=args.prompt_tokens + args.completion_tokens, keep_bytes=sys.maxsize)
    if name == "continuous":
        from workers.rollout.continuous import ContinuousEngine

        return ContinuousEngine(model)
    from workers.rollout.vllm import VllmEngine

    knobs = Vllm(gpu_memory_utilization=args.gpu_memory_utilization, dtype=args.dtype)
    longest = args.prompt_tokens + args.completion_tokens
    return VllmEngine(model, knobs, max_tokens=longest, tokenizer=tokenizer)


def measure(
    name: str, model: Any, tokenizer: Tokenizer, requests: Sequence[Request], args: argparse.Namespace
) -> dict[str, Any]:
    """Figures of one engine in seconds, GiB, tokens per second and nats, or why there are none."""
    sampling = Sampling(max_new_tokens=args.completion_tokens)
    try:
        engine, start_s = timed(lambda: start(name, model, tokenizer, args))
        _, first_s = timed(lambda: engine.generate(requests, sampling))
        rates = []
        for _ in range(args.repeats):
            rollouts, seconds = timed(lambda: engine.generate(requests, sampling))
            rates.append(sum(len(one.completion_ids) for one in rollouts) / seconds)
        awake = used_gib()
        figures = {"start_s": start_s, "first_s": first_s, "tokens_per_s": rates, "gib": awake}
        figures |= hand_over(engine)
        figures |= differences(model, rollouts[:: max(1, len(rollouts) // 16)])
        engine.close()
    except EngineUnavailable as error:
        return {"reason": str(error)}
    return figures


def hand_over(engine: Any) -> dict[str, float]:
    """Times of sleeping, waking and updating the weights, for an engine with its own copy."""
    if not hasattr(engine, "sync"):
        return {}
    _, sleep_s = timed(engine.rest)
    asleep = used_gib()
    _, wake_s = timed(engine.wake)
    _, sync_s = timed(engine.sync)
    return {"sleep_s": sleep_s, "gib_asleep": asleep, "wake_s": wake_s, "sync_s": sync_s}


def differences(model: Any, rollouts: Sequence[Rollout]) -> dict[str, float]:
    rows = [
        Row(
            task=DEDUCTION,
            role="solve",
            group=0,
            prompt_ids=one.prompt_ids,
            completion_ids=one.completion_ids,
            log_probs=one.log_probs,
            finish_reason=one.finish_reason,
            reward=0.0,
        )
        for one in rollouts
    ]
    width = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    ours = rescore(model, rows, 1.0, micro_batch_size=8, row_tokens=width)
    apart = [abs(a - b) for row, mine in zip(rows, ours, strict=True) for a, b in zip(row.log_probs, mine, strict=True)]
    return {"max_difference": max(apart), "mean_difference": sum(apart) / len(apart), "compared_tokens": len(apart)}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    settle()
    began = time.perf_counter()
    result = work()
    settle()
    return result, time.perf_counter() - began


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def used_gib() -> float:
    """Memory in use on the whole device, because vLLM's memory is outside torch."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def describe(model: Any, args: argparse.Namespace) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    adapter = f", adapters of rank {args.adapter_rank}" if args.adapter_rank else ""
    return f"{args.shape}, {count / 1e6:.0f} million parameters, {args.dtype}{adapter}, random weights"


def machine() -> str:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
    if "vllm" in sys.modules:
        versions.append(f"vllm {sys.modules['vllm'].__version__}")
    if torch.cuda.is_available():
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        versions.append(f"driver {done.stdout.strip() or 'unknown'}")
    return f"{gpu}, {', '.join(versions)}"


HEADS = (
    "engine",
    "tokens/s",
    "start s",
    "first s",
    "sleep s",
    "wake s",
    "sync s",
    "GiB",
    "asleep",
    "max diff",
    "mean diff",
)


def head() -> list[str]:
    return [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]


def line(one: dict[str, Any]) -> str:
    """The figures of one engine. (pure)"""
    if "reason" in one:
        return f"| {one['engine']} | {one['reason']} |{' |' * (len(HEADS) - 2)}"
    low, high = min(one["tokens_per_s"]), max(one["tokens_per_s"])
    cells = [one["engine"], f"{low:,.0f} to {high:,.0f}", f"{one['start_s']:.1f}", f"{one['first_s']:.1f}"]
    for key, form in (
        ("sleep_s", ".2f"),
        ("wake_s", ".2f"),
        ("sync_s", ".2f"),
        ("gib", ".1f"),
        ("gib_asleep", ".1f"),
    ):
        cells.append(format(one[key], form) if key in one else "-")
    cells += [f"{one['max_difference']:.4f}", f"{one['mean_difference']:.5f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
