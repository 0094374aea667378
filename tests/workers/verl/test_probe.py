"""What log-probs of fixed tokens find of weights that did not arrive, where no table can compare the weights."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from profiles.built_in import BUILT_IN
from workers.models.load import Tokenizer
from workers.pocket.word_problems.problems import draw_problems
from workers.rollout.probe import BOUNDS
from workers.verl import probe
from workers.verl.cpu import Sender, Server
from workers.verl.digests import SyncMismatch
from workers.verl.probe import known_layout, refuse_difference, sequences

MODEL = BUILT_IN["pocket-words"].directory
BOUND = BOUNDS[torch.float32]
"""Both sides of these tests compute in float32."""
NAME = "model.layers.1.mlp.down_proj.weight"
TEXTS = [Tokenizer(MODEL).encode(f"{story.text}\n") for story in islice(draw_problems(), 40)]


class Faulty:
    """A real engine, on the way to which something goes wrong; digests are not asked for."""

    def __init__(self, server: Server, fault: str) -> None:
        self._server, self._fault = server, fault

    async def load(self, found: dict[str, torch.Tensor], step: int | None) -> None:
        if self._fault == "a swapped row":
            found[NAME][[0, 1]] = found[NAME][[1, 0]]
        elif self._fault == "a zeroed shard":
            found[NAME][:, : found[NAME].shape[1] // 2].zero_()
        elif self._fault == "a dropped tensor":
            del found[NAME]
        if self._fault != "weights of an earlier step":
            await self._server.load(found, step)


def compare(fault: str) -> None:
    """Weights of a later step go to an engine; it and the trainer, a model of its own, score the same tokens."""
    trainer = Server(str(MODEL), seed=0, limit=4)
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in trainer.model.parameters():
            tensor += 0.05 * tensor.std() * torch.randn_like(tensor)
    engine = Server(str(MODEL), seed=0, limit=4)
    weights = trainer.model.state_dict().items()
    asyncio.run(Sender(None).send(weights, 1, Faulty(engine, fault), "0"))
    rows = sequences(TEXTS, 2, 64)
    refuse_difference(*([one.prompt_log_probs(row) for row in rows] for one in (trainer, engine)), BOUND, "0")


def test_weights_that_arrived_pass() -> None:
    compare("")


@pytest.mark.parametrize("fault", ["a swapped row", "a zeroed shard", "a dropped tensor", "weights of an earlier step"])
def test_the_probe_finds(fault: str) -> None:
    with pytest.raises(SyncMismatch, match=r"weights did not arrive at the rollout engine 0: its log-probs .* are off"):
        compare(fault)


@pytest.mark.parametrize(
    ("engine", "is_refused"),
    [
        pytest.param([-1.0, -2.0], False, id="equal"),
        pytest.param([-1.1, -2.0], False, id="as rounding"),
        pytest.param([-1.3, -2.0], True, id="more than rounding"),
        pytest.param([float("nan"), -2.0], True, id="no number"),
    ],
)
def test_the_mean_over_a_sequence_decides(engine: list[float], is_refused: bool) -> None:
    rows = [[-1.0, -2.0], [-1.0, -2.0]]
    if is_refused:
        with pytest.raises(SyncMismatch):
            refuse_difference(rows, [rows[0], engine], 0.1, "0")
    else:
        refuse_difference(rows, [rows[0], engine], 0.1, "0")


def test_sequences_are_texts_in_order_each_from_another_one_on() -> None:
    assert sequences([[1, 2], [3], [4, 5, 6]], 4, 5) == [
        [1, 2, 3, 4, 5],
        [3, 4, 5, 6, 1],
        [4, 5, 6, 1, 2],
        [1, 2, 3, 4, 5],
    ]


def test_rounding_of_the_trainer_stays_below_the_bound_and_half_a_tensor_of_zeros_does_not() -> None:
    """As on a CPU under verl: the trainer computes in bfloat16, the engine in float32."""
    model = Server(str(MODEL), seed=0, limit=4)
    rows = sequences(TEXTS, 4, 128)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trainer = [model.prompt_log_probs(row) for row in rows]
    refuse_difference(trainer, [model.prompt_log_probs(row) for row in rows], probe.BOUND, "0")
    weight = dict(model.model.named_parameters())[NAME].data
    weight[:, : weight.shape[1] // 2].zero_()
    with pytest.raises(SyncMismatch):
        refuse_difference(trainer, [model.prompt_log_probs(row) for row in rows], probe.BOUND, "0")


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}


def test_a_model_with_a_table_is_compared_weight_by_weight_and_others_are_probed() -> None:
    assert known_layout(LlamaConfig(**SIZES, num_key_value_heads=2), ranks=2) is not None
    assert known_layout(MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=2), ranks=1) is None
    assert known_layout(LlamaConfig(**SIZES, num_key_value_heads=4), ranks=3) is None


def test_no_table_is_asked_of_an_engine_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.verl.cpu.known_layout", lambda *_, **__: None)
    server = Server(str(MODEL), seed=0, limit=4)
    same = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    asyncio.run(Sender(None).send(same.state_dict().items(), 3, server, "0"))
    assert server.layout is None
