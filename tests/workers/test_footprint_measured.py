"""The planner's arithmetic against tensors that are counted one by one, on a CPU with a small real model."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from profiles.footprint import demand_of
from profiles.schema import Adapter, Model, Optimizer, Profile, Sampling
from profiles.shapes import shape_of
from tests.workers.allocations import Allocations
from workers.azr.rows import Row
from workers.azr.update import PolicyUpdate, Sums
from workers.models import adapters, fast_graphs, optimizer, recompute

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
PROMPT, COMPLETION = 96, 32
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def profile_of(adapter: Adapter, *, recomputed: bool = True) -> Profile:
    return Profile(
        name="measured",
        model=Model(path="m", dtype="bfloat16", gradient_checkpointing=recomputed),
        adapter=adapter,
        sampling=Sampling(max_prompt_tokens=PROMPT, max_completion_tokens=COMPLETION),
        optimizer=Optimizer(micro_batch_size=2, row_tokens=PROMPT + COMPLETION),
    )


def peak_of_an_update(profile: Profile) -> int:
    """Bytes beyond what is there before it: two micro-batches of full length through the trainer's own update.

    Where all weights are trained, the second one meets all gradients of the first.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    make: Any = Qwen2ForCausalLM._from_config
    model = make(Qwen2Config(**CONFIG), dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    if profile.adapter.rank:
        adapters.inject(model, profile.adapter, 0)
    if profile.model.gradient_checkpointing:
        recompute.enable(model)
        fast_graphs.enable(model, with_graphs=False)
    update = PolicyUpdate(model, optimizer.build(model, profile.optimizer), profile.optimizer, 1.0)
    rows = [
        Row(task="ded", role="solve", group=number, prompt_ids=(number,) * PROMPT, completion_ids=(7,) * COMPLETION,
            log_probs=(-6.0,) * COMPLETION, finish_reason="length", reward=0.0)
        for number in range(4)
    ]  # fmt: skip
    update.accumulate(rows[:1], [1.0], Sums())  # what is made once, like an adapter's copies
    update.forget_gradients()
    gc.collect()
    with Allocations() as seen:
        update.accumulate(rows, [1.0, -1.0] * 2, Sums())
    update.forget_gradients()
    return seen.peak


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(profile_of(Adapter(rank=8, targets=ATTENTION)), id="adapters on the attention"),
        pytest.param(profile_of(Adapter(rank=8, targets=ALL)), id="on all linear layers"),
        pytest.param(profile_of(Adapter(rank=8, targets=ALL, implementation="own")), id="our own"),
        pytest.param(profile_of(Adapter(rank=8, targets=ALL), recomputed=False), id="layers kept"),
        pytest.param(profile_of(Adapter()), id="all weights"),
        pytest.param(profile_of(Adapter(), recomputed=False), id="all weights, layers kept"),
    ],
)
def test_an_update_takes_what_the_planner_says(profile: Profile) -> None:
    parts = demand_of(profile, shape_of(CONFIG)).parts["train"]
    expected = sum(size for name, size in parts.items() if name not in ("weights", "adapter", "moments", "copies"))
    assert peak_of_an_update(profile) == pytest.approx(expected, rel=0.1)
