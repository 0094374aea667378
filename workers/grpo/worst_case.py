"""The largest shapes of a step, once, before anything else: running out of memory shows in the first minute."""

from __future__ import annotations

import random
import resource
from typing import Any

import torch

from profiles.schema import Profile
from workers.grpo.prepare import Minibatch, Prepared
from workers.grpo.rows import Row
from workers.grpo.update import GroupUpdate
from workers.models.optimizer import moment_bytes
from workers.rollout.engine import Request, Sampling
from workers.rollout.select import Portions


def rehearse(model: Any, engine: Portions, update: GroupUpdate, profile: Profile) -> dict[str, float]:
    """Full rollout batch and largest micro-batch at full length. Weights, optimiser and generators stay as they are."""
    draws = random.Random(0)
    vocabulary = model.config.vocab_size
    devices = [model.device] if model.device.type == "cuda" else []
    if devices:
        torch.cuda.reset_peak_memory_stats()
    with torch.random.fork_rng(devices=devices):
        engine.generate(
            _longest_requests(engine, profile, vocabulary, draws), _longest_sampling(profile, bool(devices))
        )
        engine.rest()
        prepared = _longest_rows(update.sizes.rollouts, profile, vocabulary, draws)
        update.accumulate(prepared, prepared.minibatches[0])
        update.forget_gradients()
    if devices:
        measured = float(torch.cuda.max_memory_allocated())
    else:
        measured = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return {"measured_bytes": measured, "expected_peak_bytes": measured + moment_bytes(model, profile.optimizer)}


def _longest_requests(engine: Portions, profile: Profile, vocabulary: int, draws: random.Random) -> list[Request]:
    count = min(profile.grpo.groups_per_step * profile.grpo.group_size, engine.max_rows)
    longest = profile.sampling.max_prompt_tokens
    return [Request(_ids(longest, vocabulary, draws), seed) for seed in range(count)]


def _longest_sampling(profile: Profile, is_gpu: bool) -> Sampling:
    """On a CPU a few tokens do: the cache has its full size where that is fixed, and more would only take seconds."""
    limit = profile.sampling.max_completion_tokens
    return Sampling(
        temperature=profile.sampling.temperature,
        max_new_tokens=limit if is_gpu else min(limit, 2),
        ignore_stop=True,
        entropies=profile.grpo.entropy_mask != "off",
    )


def _longest_rows(count: int, profile: Profile, vocabulary: int, draws: random.Random) -> Prepared:
    """A minibatch of `count` rollouts of different prompts, so that no part is shared; every token gets a gradient."""
    length = profile.sampling.max_completion_tokens
    rows = [
        Row(
            group=number,
            problem=0,
            prompt_ids=_ids(profile.sampling.max_prompt_tokens, vocabulary, draws),
            completion_ids=_ids(length, vocabulary, draws),
            log_probs=(-1.0,) * length,
            finish_reason="length",
            reward=0.0,
        )
        for number in range(count)
    ]
    some = [torch.full((length,), -1.0) for _ in rows]
    minibatch = Minibatch(tuple(range(count)), (1 / (count * length),) * count, None)
    ref = some if profile.grpo.kl_coef else None
    return Prepared(rows, [1.0] * count, some, None, ref, [minibatch])


def _ids(length: int, vocabulary: int, draws: random.Random) -> tuple[int, ...]:
    return tuple(draws.randrange(vocabulary) for _ in range(length))
