"""Measures what a turn of an environment costs, beside reading its new tokens as a prompt of their own.

The model has the shape --shape and random weights, and ends a reply after --reply-tokens tokens on average. `turn` is
all that turns take besides drawing replies: caches are kept, what is said is read behind them, and the rows go on.
`reading` is the pass over the new ids, which attend to the conversation so far; `alone` is what the same ids take as
prompts of their own, in the same groups of rows. Each is milliseconds for one turn of one conversation. `all` is the
whole call; `anew` is the same if each turn asks anew, with the conversation so far as the prompt.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.engines import SHAPES, make_model
from workers.rollout import native
from workers.rollout.conversation import by_rounds
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.graph import engine as graph_engine
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.prompts import read_behind, read_prompts
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
    print(f"{args.rows} conversations of {args.turns} turns; milliseconds of a turn, seconds of the call")
    print(f"{'':8} {'turn':>8} {'reading':>8} {'alone':>8} {'all':>8} {'anew':>8}")
    for repeat in range(args.repeats + 1):
        with clocked(engine) as spent:
            _, whole = timed(args, lambda: engine.converse(requests, sampling, respond))  # type: ignore[attr-defined]
        turns = sum(len(one) for one in spent.read)
        alone = sum(read_alone(args, engine, one) for one in spent.read)
        anew = timed(args, lambda: by_rounds(engine.generate, requests, sampling, respond))[1]
        if repeat:
            each = 1000 / turns
            print(
                f"{repeat:<8} {each * spent.turns:8.3f} {each * spent.reading:8.3f} {each * alone:8.3f} "
                f"{whole:8.3f} {anew:8.3f}"
            )
    return 0


def bend(model: Any, mean: int) -> int:
    """Lets the stop token come every `mean` tokens; returns it. All other tokens are alike."""
    stop, width = int(model.config.eos_token_id), model.config.hidden_size
    head = torch.nn.Linear(
        width, model.config.vocab_size, bias=False, device=model.device, dtype=model.lm_head.weight.dtype
    )
    with torch.no_grad():
        # The first number of every embedding is so large that the last norm leaves only that: sqrt(width).
        model.model.embed_tokens.weight[:, 0] = 1000.0
        head.weight.zero_()
        head.weight[stop, 0] = math.log((model.config.vocab_size - 1) / (mean - 1)) / math.sqrt(width)
    model.lm_head = head
    return stop


def read_alone(args: argparse.Namespace, engine: Any, new: Sequence[Sequence[int]]) -> float:
    """Seconds of reading these ids as prompts of their own."""

    def once() -> Any:
        with torch.inference_mode():
            if isinstance(engine, NativeEngine):
                return engine._read_prompts([Request(tuple(one), 0) for one in new], max(map(len, new)), 1)
            prompts = [(*one, 0) for one in new]
            return read_prompts(engine._decoder, engine._state, engine._passes, prompts, range(len(new)), {})

    return min(timed(args, once)[1] for _ in range(3))


@dataclass
class Spent:
    """Seconds of all turns, and of the passes in them. read: the ids of each pass, by row."""

    turns: float = 0.0
    reading: float = 0.0
    read: list[list[Sequence[int]]] = field(default_factory=list)


@contextmanager
def clocked(engine: Any) -> Iterator[Spent]:
    """What turns take, inside."""
    spent = Spent()

    def clock(inner: Callable[..., Any], into: str) -> Callable[..., Any]:
        def outer(*arguments: Any) -> Any:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            began = time.perf_counter()
            found = inner(*arguments)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            setattr(spent, into, getattr(spent, into) + time.perf_counter() - began)
            return found

        return outer

    def noted(inner: Callable[..., Any], place: int) -> Callable[..., Any]:
        def outer(*arguments: Any) -> Any:
            spent.read.append(list(arguments[place]))
            return inner(*arguments)

        return outer

    with ExitStack() as changed:

        def change(owner: Any, name: str, by: Any) -> None:
            changed.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, by)

        if isinstance(engine, GraphEngine):
            change(engine, "_resume", clock(engine._resume, "turns"))
            change(graph_engine, "read_behind", clock(noted(read_behind, 2), "reading"))
        else:
            change(engine, "_read_more", clock(noted(engine._read_more, 1), "turns"))
            change(native._Batch, "cached", clock(native._Batch.cached, "turns"))
            change(engine, "_read_behind", clock(engine._read_behind, "reading"))
        yield spent


def timed(args: argparse.Namespace, work: Callable[[], Any]) -> tuple[Any, float]:
    if args.device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = work()
    if args.device == "cuda":
        torch.cuda.synchronize()
    return found, time.perf_counter() - began
