"""In float32 engine and trainer compute the same function: both are held to plain transformers in float64.

The bound follows from the arithmetic. A log-prob ends a chain of sums: in each layer over the hidden size (two norms,
the inputs of attention and MLP), over the head's width and the tokens seen (attention) and over the MLP's width, and
last over the hidden size and the vocabulary. n rounded operations in a row, with errors that are not all of one sign,
are off by at most L * sqrt(n) * u of the size of what is summed, but for a chance of 2 exp(-L^2 / 2): L = 4 gives .07 %
(Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). u = 2^-24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from profiles.schema import Adapter
from profiles.schema import Optimizer as Knobs
from tests.workers.grpo import small
from workers.azr.rows import Row
from workers.azr.update import PolicyUpdate, advantages_of
from workers.models import adapters, fast_graphs, lora, optimizer, packing, recompute
from workers.models.log_probs import score
from workers.rollout import engine
from workers.rollout.engine import Request
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine

pytestmark = pytest.mark.usefixtures("one_thread")

WANTED = 1e-5
"""Nats that engine and trainer may be off in float32."""
LONGEST = 60
VOCABULARY, HIDDEN, WIDE, LAYERS, HEADS = 101, 32, 64, 2, 4
ADAPTER = Adapter(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "o_proj", "down_proj"))


def model_of(architecture: str, implementation: str = "") -> Any:
    """A tiny model with logits of about a nat; implementation: of an adapter that changes what it says."""
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=WIDE, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.035,
        tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    if implementation:
        adapters.inject(model, Adapter(**{**knobs_of(ADAPTER), "implementation": implementation}), 0)
        for name, matrix in adapters.adapter_of(model).items():
            if ".lora_B." in name:
                torch.nn.init.normal_(matrix, std=0.1)
    return model


def knobs_of(knobs: Adapter) -> dict[str, Any]:
    return {name: getattr(knobs, name) for name in knobs.__struct_fields__}


def reference(model: Any, architecture: str) -> Any:
    """Plain transformers in float64, adapters added to the weights."""
    plain = model_of(architecture)
    matrices = adapters.adapter_of(model)
    plain = plain.double()
    if matrices:
        before = plain.model.layers[0].self_attn.q_proj.weight.clone()
        for name, b in ((name, one) for name, one in matrices.items() if ".lora_B." in name):
            a = matrices[name.replace(".lora_B.", ".lora_A.")]
            target = name.removeprefix(adapters.PREFIX).replace(".lora_B.weight", ".weight")
            product = b.detach().double() @ a.detach().double()
            plain.get_parameter(target).data += lora.scale_of(ADAPTER) * product
        assert not torch.equal(plain.model.layers[0].self_attn.q_proj.weight, before)
    return plain


def exact(model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> tuple[Tensor, float]:
    """Log-probs of the completion, [T] in float64, and the largest logit."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0] / temperature
    found = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return found.gather(1, torch.tensor(completion)[:, None])[:, 0], float(logits.abs().max())


def bound_of(largest_logit: float) -> float:
    """Nats that a log-prob in float32 may be off: of a logit, and of the sum of all of them."""
    a_layer = 4 * HIDDEN + HIDDEN // HEADS + 2 * LONGEST + WIDE
    operations = LAYERS * a_layer + HIDDEN + VOCABULARY
    return 4 * math.sqrt(operations) * 2**-24 * max(1.0, largest_logit)


def requests() -> list[Request]:
    draws = Random(3)
    prompts = [tuple(draws.randrange(2, VOCABULARY) for _ in range(count)) for count in (1, 7, 20, 40)]
    return [Request(prompt, seed) for seed, prompt in enumerate(prompts * 3)]


def enabled(model: Any, is_fast: bool) -> Any:
    if is_fast:
        recompute.enable(model)
        fast_graphs.enable(model, with_graphs=False)
    return model


@pytest.mark.parametrize("temperature", [1.0, 1.3])
@pytest.mark.parametrize(
    ("architecture", "implementation", "is_fast"),
    [("Qwen2", "", False), ("Qwen2", "", True), ("Qwen2", "peft", True), ("Qwen2", "own", False),
     ("Qwen2", "own", True), ("Llama", "", False), ("Llama", "own", True)],
)  # fmt: skip
@pytest.mark.parametrize("make", [NativeEngine, HfEngine])
def test_engine_and_trainer_say_what_plain_transformers_says_in_float64(
    make: Any, architecture: str, implementation: str, is_fast: bool, temperature: float
) -> None:
    model = enabled(model_of(architecture, implementation), is_fast)
    has_runner = getattr(model, "fast_runner", None) is not None
    assert has_runner is (is_fast and implementation != "peft")
    drawn = make(model).generate(requests(), engine.Sampling(max_new_tokens=20, temperature=temperature))
    units = packing.units_of([one.prompt_ids for one in drawn], [one.completion_ids for one in drawn], 200)
    pack = packing.pack(packing.rows_of(units, 200))
    learnt = score(model, pack, temperature).log_probs.detach()
    with torch.no_grad():
        few = 7 * VOCABULARY  # of logits at one time
        read = score(model, pack, temperature, max_logits=few).log_probs
    plain = reference(model, architecture)
    for number, one in enumerate(drawn):
        truth, largest = exact(plain, one.prompt_ids, one.completion_ids, temperature)
        assert (bound := bound_of(largest)) < WANTED
        for found in (torch.tensor(one.log_probs), learnt[pack.owners == number], read[pack.owners == number]):
            assert float((found.double() - truth).abs().max()) < bound


def azr_rows(model: Any) -> list[Row]:
    drawn = NativeEngine(model).generate(requests(), engine.Sampling(max_new_tokens=20))
    return [
        Row(task=("abd", "ded", "ind")[number % 3], role="solve", group=number % 4, prompt_ids=one.prompt_ids,
            completion_ids=one.completion_ids, log_probs=one.log_probs, finish_reason=one.finish_reason,
            reward=float(number % 2))
        for number, one in enumerate(drawn)
    ]  # fmt: skip


@pytest.mark.parametrize("updates", [1, 3])
def test_what_an_update_changes_is_not_counted_as_the_engine_s_distance(updates: int) -> None:
    model = model_of("Qwen2")
    knobs = Knobs(learning_rate=1e-3, warmup_steps=0, updates_per_step=updates, row_tokens=200)
    rows = azr_rows(model)
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
    _, metrics = update.apply(1, rows, advantages_of(rows, "cell").values)
    assert metrics["mismatch_max"] < WANTED
    tokens = [len(row.completion_ids) for row in rows]
    assert metrics["mismatch_tokens"] == (sum(tokens) if updates == 1 else sum(tokens[::3]))  # of the first task


@pytest.mark.parametrize("changes", [{}, {"updates_per_step": 2}])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_same_holds_for_grpo(changes: dict[str, Any], epochs: int) -> None:
    model, profile = small.tiny_model(), small.profile_of(changes, old_source="rollout", inner_epochs=epochs)
    rows = small.rows_of(model)
    advantages = small.advantages_of(rows, profile)
    _, metrics = small.update_of(model, profile).apply(1, 1e-2, rows, advantages)
    assert metrics["mismatch_max"] < WANTED
    assert 0 < metrics["mismatch_tokens"] <= sum(len(row.completion_ids) for row in rows)
    if epochs > 1 or changes:
        assert metrics["ratio_max"] > 1 + 1e-3  # the policy has moved


def test_an_update_that_is_skipped_moves_nothing() -> None:
    """Its numbers were not finite: the next one still compares the weights that drew the rollouts."""
    model = model_of("Qwen2")
    knobs = Knobs(learning_rate=1e-3, warmup_steps=0, updates_per_step=3, row_tokens=200)
    rows = azr_rows(model)
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
    is_finite, metrics = update.apply(1, rows, [math.nan] * len(rows))
    assert not is_finite
    assert metrics["mismatch_max"] < WANTED
    assert metrics["mismatch_tokens"] == sum(len(row.completion_ids) for row in rows)
