"""Weights that arrived, where no table says which part of them an engine holds: log-probs of fixed tokens are compared.

Engine and trainer score the same text with the weights that each has: that of the problems, because rounding moves the
log-probs of unlikely tokens several times as far. Zeros, weights of another step and tensors
that never came move them further than rounding does. What moves them less is not seen: digests see every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count, islice
from typing import Any

import torch

from workers.rollout.probe import BOUNDS
from workers.verl.digests import MARK, SyncMismatch
from workers.verl.slices import Layout, UnknownLayout

MOST_TOKENS = 256
MOST_TEXTS = 1000
BOUND = BOUNDS[torch.bfloat16]
"""Largest accepted mean difference over a sequence, in nats a token. verl's engines train in bfloat16 whatever the
rollout engine computes in, so its rounding decides; `workers/rollout/probe.py` derives the number."""


def known_layout(config: Any, ranks: int) -> Layout | None:
    """The table of parts for a model, or None where it lacks one of its weights. config: of transformers."""
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = build(config)
    try:
        layout = Layout.of(config.to_dict(), ranks)
        for name, tensor in model.named_parameters():
            layout.part(name, tuple(tensor.shape), 0)
    except UnknownLayout:
        return None
    return layout


def sequences(texts: Sequence[Sequence[int]], rows: int, tokens: int) -> list[list[int]]:
    """As many sequences of so many tokens: texts one after the other, each from another one on. (pure)"""
    found = []
    for row in range(rows):
        stream = chain.from_iterable(texts[place % len(texts)] for place in count(row))
        found.append(list(islice(stream, tokens)))
    return found


def refuse_difference(
    trainer: Sequence[Sequence[float]], engine: Sequence[Sequence[float]], bound: float, name: str
) -> None:
    """trainer, engine: log-probs of each sequence's tokens but the first. Raises SyncMismatch beyond the bound."""
    off = 0.0
    for ours, theirs in zip(trainer, engine, strict=True):
        mean = sum(abs(one - other) for one, other in zip(ours, theirs, strict=True)) / len(ours)
        off = mean if not mean <= off else off  # NaN stays
    if not off <= bound:
        raise SyncMismatch(
            f"{MARK} at the rollout engine {name}: its log-probs of fixed tokens are off the trainer's by {off:.2g} "
            f"nats a token, and rounding explains {bound:g}"
        )


def probe(trainer: Any) -> None:
    """In verl's driver, after a sync. trainer: verl's. Raises SyncMismatch for the first engine that is off."""
    import ray

    group, config = trainer.actor_rollout_wg, trainer.config
    tokens = min(MOST_TOKENS, config.data.max_prompt_length)
    problems = trainer.train_dataset.dataframe[:MOST_TEXTS]["prompt"]
    texts = [trainer.tokenizer.encode(messages[0]["content"]) for messages in problems]
    rows = sequences([text for text in texts if text], group.world_size, tokens)
    ours = _of_trainer(group, rows)
    asked = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
    for replica in trainer.llm_server_manager.get_replicas():
        found = ray.get(
            [
                replica.server_handle.generate.remote(
                    prompt_ids=row, sampling_params=dict(asked), request_id=f"longhaul-probe-{number}"
                )
                for number, row in enumerate(rows)
            ]
        )
        # One number for each token; that of the first is left out, and the last is padding.
        theirs = [[one[0] for one in output.extra_fields["prompt_logprobs"][:-1]] for output in found]
        refuse_difference(ours, theirs, BOUND, f"replica {replica.replica_rank}")


def _of_trainer(group: Any, rows: list[list[int]]) -> list[list[float]]:
    """By the pass that verl makes over rollouts, at temperature 1."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

    ids = torch.tensor(rows)
    ones = torch.ones_like(ids)
    batch = tensordict_utils.get_tensordict(
        {
            "prompts": ids[:, :1],
            "responses": ids[:, 1:],
            "input_ids": ids,
            "attention_mask": ones,
            "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous(),
            "response_mask": ones[:, 1:],
        }
    )
    batch = left_right_2_no_padding(batch)
    tensordict_utils.assign_non_tensor(batch, calculate_entropy=False, compute_loss=False, temperature=1.0)
    found = group.compute_log_prob(batch)
    log_probs = no_padding_2_padding(tensordict_utils.get(found, "log_probs"), batch)
    return [[float(one) for one in row] for row in log_probs]
