"""Runs the largest shapes of a step first, so that an out-of-memory error shows in the first minute."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from profiles.schema import Profile
from workers.azr.rows import Row
from workers.azr.update import PolicyUpdate, Sums
from workers.memory.phases import Memory
from workers.rollout.engine import Request, Sampling
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions


def rehearse(model: Any, engine: Portions, update: PolicyUpdate, profile: Profile, memory: Memory) -> dict[str, Any]:
    """Take the memory of a full rollout batch and of the largest micro-batch at full length, on each rank. Leaves
    weights, optimiser and random generators unchanged. Returns the measured memory."""
    draws = random.Random(0)
    vocabulary = model.config.vocab_size
    devices = [model.device] if model.device.type == "cuda" else []
    memory.forget()
    with torch.random.fork_rng(devices=devices):
        with memory.phase("rollout"), update.parallel.reading():
            _longest_rollouts(model, engine, profile, vocabulary, draws)
            engine.rest()
        ranks = update.parallel.group.size
        rows = _longest_rows(update.micro_batch_size * ranks, profile, vocabulary, draws)
        with memory.phase("train"):
            with update.parallel.passes():
                update.accumulate(rows, [1.0] * len(rows), Sums())
            update.forget_gradients()
    return memory.rehearsed(update.moments_to_come())


def _longest_rollouts(model: Any, portions: Portions, profile: Profile, vocabulary: int, draws: random.Random) -> None:
    """As many rollouts side by side as a step has, on a GPU up to the token limit, or what takes as much memory.

    On a CPU with the native engine all stop at the first token: the cache already has its full size then, and more
    tokens would only take time.
    """
    requests, how = longest(portions, profile, lambda length: _ids(length, vocabulary, draws))
    if isinstance(portions.engine, NativeEngine) and model.device.type != "cuda":
        NativeEngine(model, stop_ids=range(vocabulary)).generate(requests, replace(how, ignore_stop=False))
    else:
        portions.rehearse(requests, how)


def longest(
    portions: Portions, profile: Profile, prompt: Callable[[int], tuple[int, ...]] = lambda length: (0,) * length
) -> tuple[list[Request], Sampling]:
    """A full rollout batch. prompt: its tokens, where not only lengths matter."""
    azr, sampling = profile.azr, profile.sampling
    in_a_step = len(azr.tasks) * azr.proposals_per_task * azr.group_size
    count = min(in_a_step, int(portions.max_rows * sampling.overcommit))
    requests = [Request(prompt(sampling.max_prompt_tokens), seed) for seed in range(count)]
    how = Sampling(temperature=sampling.temperature, max_new_tokens=sampling.max_completion_tokens, ignore_stop=True)
    return requests, how


def _longest_rows(count: int, profile: Profile, vocabulary: int, draws: random.Random) -> list[Row]:
    """`count` rows of full length. All prompts differ, so no prefix is shared."""
    length = profile.sampling.max_completion_tokens
    return [
        Row(
            task=profile.azr.tasks[0],
            role="solve",
            group=number,
            prompt_ids=_ids(profile.sampling.max_prompt_tokens, vocabulary, draws),
            completion_ids=_ids(length, vocabulary, draws),
            log_probs=(-1.0,) * length,
            finish_reason="length",
            reward=0.0,
        )
        for number in range(count)
    ]


def _ids(length: int, vocabulary: int, draws: random.Random) -> tuple[int, ...]:
    return tuple(draws.randrange(vocabulary) for _ in range(length))
