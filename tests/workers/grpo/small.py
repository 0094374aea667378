"""A tiny Qwen2, rollouts of it, and a whole GRPO trainer that needs no process: what the tests of this folder share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from profiles.schema import Adapter, Grpo, Optimizer, Profile, Run, Sampling
from tests.profiles.variants import with_variants
from workers.grpo.advantages import group_advantages, rule_of
from workers.grpo.entropy import EntropyMask
from workers.grpo.prepare import Minibatch, Prepared, prepare
from workers.grpo.rows import Row
from workers.grpo.scoring import Sizes, score_rows
from workers.grpo.update import GroupUpdate
from workers.models import adapters, optimizer, random_init

VOCABULARY = 97
SIZES = Sizes(64, 64, 64)


def tiny_model(*, vocabulary: int = VOCABULARY, adapter: Adapter | None = None, seed: int = 0) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                         tie_word_embeddings=False, eos_token_id=1)  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    if adapter is not None:
        adapters.inject(model, adapter, seed)
    return model


def profile_of(optimizer_: dict[str, Any] | None = None, **grpo: Any) -> Profile:
    knobs = {"learning_rate": 1e-2, "warmup_steps": 0, "micro_batch_size": 64, "row_tokens": 64} | (optimizer_ or {})
    return Profile(
        name="test",
        run=Run(worker="grpo", threads=1),
        sampling=Sampling(max_prompt_tokens=16, max_completion_tokens=16),
        grpo=with_variants(Grpo, **({"groups_per_step": 4, "group_size": 4, "entropy_min_tokens": 0} | grpo)),
        optimizer=Optimizer(**knobs),
    )


def rows_of(
    model: Any, groups: int = 4, size: int = 4, *, seed: int = 0, shift: float = 0.0, turns: bool = False
) -> list[Row]:
    """Random prompts and completions, with the log-probs that the model gives them, off by up to `shift`.

    turns: some are conversations.
    """
    draws = Random(seed)
    vocabulary = model.config.vocab_size
    rows = []
    for group in range(groups):
        prompt = tuple(draws.randrange(2, vocabulary) for _ in range(draws.randint(2, 9)))
        for _ in range(size):
            ids = (*(draws.randrange(2, vocabulary) for _ in range(draws.randint(1, 9))), 1)
            is_own = tuple(draws.random() < 0.6 for _ in ids[1:]) if turns else ()
            rows.append(
                Row(group=group, problem=group, prompt_ids=prompt, completion_ids=ids, log_probs=(0.0,) * len(ids),
                    finish_reason="stop", reward=float(draws.randrange(2)), is_own=(*is_own, True) if turns else ())
            )  # fmt: skip
    scores = score_rows(model, rows, 1.0, Sizes(64, 64, 64))
    return [
        msgspec.structs.replace(
            row,
            log_probs=tuple(value + draws.uniform(-shift, shift) for value in log_probs.tolist()),
            entropies=tuple(entropies.tolist()),
        )
        for row, log_probs, entropies in zip(rows, *scores, strict=True)
    ]


def update_of(model: Any, profile: Profile, sizes: Sizes | None = None) -> GroupUpdate:
    made = optimizer.build(model, profile.optimizer)
    return GroupUpdate(model, made, profile, EntropyMask(profile.grpo), sizes=sizes)


def whole(prepared: Prepared) -> Minibatch:
    assert len(prepared.minibatches) == 1
    return prepared.minibatches[0]


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def write_problems(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{n}+{n + 1}=", "answer": str(2 * n + 1)} for n in range(count)]


def digest_of(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def write_model(folder: Path) -> Path:
    """A model of few layers and tokens with the widths of Qwen 2.5 0.5B, whose kernels a GPU compiles; written in a
    second, where a whole one takes minutes to draw."""
    shape = {**random_init.ARCHITECTURES["qwen2.5-0.5b"], "num_hidden_layers": 3, "vocab_size": 512}
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_init.ARCHITECTURES, "few layers", shape)
        random_init.write("few layers", 0, "bfloat16", folder)
    return folder


class Hook:
    """Counts calls, and does something at a given one."""

    def __init__(self, at: int = 0, act: Callable[[], None] | None = None) -> None:
        self.calls, self._at, self._act = 0, at, act

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        if self.calls == self._at and self._act is not None:
            self._act()


def advantages_of(rows: list[Row], profile: Any) -> list[float]:
    return list(group_advantages([r.reward for r in rows], [r.group for r in rows], rule_of(profile.grpo)).values)


def prepared_of(model: Any, rows: list[Row], profile: Any, sizes: Sizes = SIZES) -> Prepared:
    return prepare(model, profile, rows, advantages_of(rows, profile), [], EntropyMask(profile.grpo), sizes)
