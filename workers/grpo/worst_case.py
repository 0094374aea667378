"""Runs the largest shapes of a step first, so that an out-of-memory error shows in the first minute."""

from __future__ import annotations

import random
from typing import Any

import torch

from profiles.footprint import rollouts_held
from profiles.schema import Profile
from workers.grpo.prepare import Minibatch, Prepared
from workers.grpo.rows import Row
from workers.grpo.scoring import Sizes, batches, packed, units_of
from workers.grpo.update import GroupUpdate
from workers.memory.phases import Memory
from workers.rollout.engine import Request, Sampling
from workers.rollout.select import Portions


def rehearse(model: Any, engine: Portions, update: GroupUpdate, profile: Profile, memory: Memory) -> dict[str, Any]:
    """What a full rollout batch and the largest forward pass allocate, at full length. Leaves weights, optimiser and
    generators unchanged."""
    draws = random.Random(0)
    vocabulary = model.config.vocab_size
    devices = [model.device] if model.device.type == "cuda" else []
    memory.forget()
    with torch.random.fork_rng(devices=devices):
        requests, sampling = longest(engine, profile, model, draws)
        with memory.phase("rollout"), update.parallel.reading():
            engine.rehearse(requests, sampling)
            engine.rest()
        prepared = _largest(update.sizes, profile, vocabulary, draws)
        with memory.phase("train"):
            with update.parallel.passes():
                update.accumulate(prepared, prepared.minibatches[0], is_partitioned=False)
            update.forget_gradients()
    return memory.rehearsed(update.moments_to_come())


def longest(
    engine: Portions, profile: Profile, model: Any, draws: random.Random | None = None
) -> tuple[list[Request], Sampling]:
    """A full rollout batch. draws: the prompts' tokens; None where only lengths matter."""
    count = min(rollouts_held(profile), int(engine.max_rows * profile.sampling.overcommit))
    length, vocabulary = profile.sampling.max_prompt_tokens, model.config.vocab_size
    prompts = (_ids(length, vocabulary, draws) if draws is not None else (0,) * length for _ in range(count))
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
    return requests, _longest_sampling(profile, model.device.type == "cuda")


def _longest_sampling(profile: Profile, is_gpu: bool) -> Sampling:
    """On a CPU a few tokens suffice: a cache of fixed size is full-size anyway, and more tokens only cost time."""
    limit = profile.sampling.max_completion_tokens
    return Sampling(
        temperature=profile.sampling.temperature,
        max_new_tokens=limit if is_gpu else min(limit, 2),
        ignore_stop=True,
        entropies=profile.grpo.entropy_mask != "off",
    )


def _largest(sizes: Sizes, profile: Profile, vocabulary: int, draws: random.Random) -> Prepared:
    """One forward pass with a gradient for every token: a full micro-batch of different prompts, or, if rows are longer
    than that, as much of one group as a row holds."""
    count = min(sizes.rollouts, rollouts_held(profile))
    prompts = [_ids(profile.sampling.max_prompt_tokens, vocabulary, draws) for _ in range(count)]
    different = [_row(prompt, profile, vocabulary, draws) for prompt in prompts]
    group = [_row(prompts[0], profile, vocabulary, draws) for _ in range(profile.grpo.group_size)]
    passes = [
        (pack, [rows[i] for i in members])
        for rows in (different, group)
        for pack, members in map(packed, batches(units_of(rows, sizes), sizes))
    ]
    _, rows = max(passes, key=lambda one: one[0].ids.numel())
    length = profile.sampling.max_completion_tokens
    some = [torch.full((length,), -1.0) for _ in rows]
    minibatch = Minibatch(tuple(range(len(rows))), (1 / (len(rows) * length),) * len(rows), None)
    has_reference = profile.grpo.kl_coef > 0 or profile.grpo.variants.low_entropy_kl > 0
    return Prepared(rows, [1.0] * len(rows), some, None, some if has_reference else None, [minibatch])


def _row(prompt_ids: tuple[int, ...], profile: Profile, vocabulary: int, draws: random.Random) -> Row:
    length = profile.sampling.max_completion_tokens
    return Row(
        group=0,
        problem=0,
        prompt_ids=prompt_ids,
        completion_ids=_ids(length, vocabulary, draws),
        log_probs=(-1.0,) * length,
        finish_reason="length",
        reward=0.0,
    )


def _ids(length: int, vocabulary: int, draws: random.Random) -> tuple[int, ...]:
    return tuple(draws.randrange(vocabulary) for _ in range(length))
