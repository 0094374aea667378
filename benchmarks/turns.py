"""Measures what a turn of an environment costs, beside reading its new tokens as a prompt of their own.

The model has the shape --shape and random weights. Its output head is bent so that a reply has --reply-tokens tokens on
average. `turn` is all that a turn takes besides drawing the reply: what is said is encoded, read behind the cache, and
the row goes on. `reading` is a pass over the same ids, for the same rows, as prompts of their own. `anew` is what the
same turns take if each asks anew with the whole conversation as its prompt.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.engines import SHAPES, make_model
from workers.rollout.conversation import by_rounds
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.prompts import read_prompts
from workers.rollout.native import NativeEngine
from workers.rollout.select import native_engine


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks turns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="qwen2-tiny")
    parser.add_argument("--rows", type=int, default=32, help="conversations side by side (32)")
    parser.add_argument("--turns", type=int, default=6, help="replies of each (6)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--reply-tokens", type=int, default=32, help="mean length of a reply (32)")
    parser.add_argument("--said-tokens", type=int, default=64, help="what the environment says in a turn (64)")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs after a warm-up (3)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # on a CPU each thread has conversations of its own, whose seconds would be added up
    model, _ = make_model(argparse.Namespace(**vars(args), adapter_rank=0))
    stop = bend(model, args.reply_tokens)
    draws = random.Random(1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(one if (one := draws.randrange(model.config.vocab_size)) != stop else 0 for _ in range(count))

    requests = [Request(ids(args.prompt_tokens), seed) for seed in range(args.rows)]
    said = {row: [ids(args.said_tokens) for _ in range(args.turns)] for row in range(args.rows)}
    limit = args.turns * (args.said_tokens + 8 * args.reply_tokens)

    def respond(row: int, so_far: Rollout) -> Future[tuple[int, ...]]:
        answer: Future[tuple[int, ...]] = Future()
        turn = sum(token == stop for token in so_far.completion_ids)
        answer.set_result(said[row][turn] if turn < args.turns else ())
        return answer

    engine = native_engine(model, None)
    sampling = Sampling(max_new_tokens=limit)
    print(f"{args.rows} conversations of {args.turns} turns; seconds of a turn, and of all")
    print(f"{'':8} {'turn':>9} {'reading':>9} {'ratio':>6} {'all':>9} {'anew':>9}")
    for repeat in range(args.repeats + 1):
        with clocked(engine) as spent:
            found, whole = timed(args, lambda: engine.converse(requests, sampling, respond))  # type: ignore[attr-defined]
        turns = sum(sum(token == stop for token in one.completion_ids) - 1 for one in found)
        reading = read_alone(args, engine, [said[row][0] for row in range(args.rows)])
        anew = timed(args, lambda: by_rounds(engine.generate, requests, sampling, respond))[1]
        if repeat:
            turn = spent["turn"] / (turns / args.rows)
            print(f"{repeat:<8} {turn:9.4f} {reading:9.4f} {turn / reading:6.2f} {whole:9.3f} {anew:9.3f}")
    return 0


def bend(model: Any, mean: int) -> int:
    """Lets the stop token come every `mean` tokens; returns it. With random weights all other tokens are alike."""
    stop = int(model.config.eos_token_id)
    head = torch.nn.Linear(
        model.config.hidden_size, model.config.vocab_size, device=model.device, dtype=model.lm_head.weight.dtype
    )
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[stop] = float(torch.log(torch.tensor((model.config.vocab_size - 1) / (mean - 1))))
    model.lm_head = head
    return stop


def read_alone(args: argparse.Namespace, engine: Any, new: list[tuple[int, ...]]) -> float:
    """Seconds of reading these ids as prompts."""

    def work() -> Any:
        if not isinstance(engine, GraphEngine):
            return engine._read_prompts([Request(one, 0) for one in new], len(new[0]), 1)
        assert engine._state is not None
        return read_prompts(engine._decoder, engine._state, [(*one, 0) for one in new], range(len(new)))

    def once() -> Any:
        with torch.inference_mode():
            return work()

    once()
    return min(timed(args, once)[1] for _ in range(3))


@contextmanager
def clocked(engine: Any) -> Iterator[dict[str, float]]:
    """Seconds of `turn`, inside."""
    spent = {"turn": 0.0}
    name = "_resume" if isinstance(engine, GraphEngine) else "_read_more"
    assert isinstance(engine, GraphEngine | NativeEngine)
    inner = getattr(engine, name)

    def outer(*arguments: Any) -> Any:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        found = inner(*arguments)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent["turn"] += time.perf_counter() - began
        return found

    setattr(engine, name, outer)
    try:
        yield spent
    finally:
        delattr(engine, name)


def timed(args: argparse.Namespace, work: Callable[[], Any]) -> tuple[Any, float]:
    if args.device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = work()
    if args.device == "cuda":
        torch.cuda.synchronize()
    return found, time.perf_counter() - began
