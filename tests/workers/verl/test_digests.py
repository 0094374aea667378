"""What the digest of a weight finds: every way in which a rollout engine may hold other weights than were sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.built_in import BUILT_IN
from workers.verl.cpu import Sender, Server
from workers.verl.digests import Sent, SyncMismatch, digest, held, part_of, refuse_mismatch
from workers.verl.slices import Layout, UnknownLayout

HEADS, KV_HEADS, HEAD, WIDTH, INNER, VOCABULARY = 8, 2, 4, 32, 48, 100


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Of one layer, by the names of Hugging Face."""
    torch.manual_seed(0)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD, WIDTH),
        f"{layer}.self_attn.q_proj.bias": (HEADS * HEAD,),
        f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD, WIDTH),
        f"{layer}.self_attn.k_proj.bias": (KV_HEADS * HEAD,),
        f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD, WIDTH),
        f"{layer}.self_attn.v_proj.bias": (KV_HEADS * HEAD,),
        f"{layer}.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
        f"{layer}.mlp.gate_proj.weight": (INNER, WIDTH),
        f"{layer}.mlp.up_proj.weight": (INNER, WIDTH),
        f"{layer}.mlp.down_proj.weight": (WIDTH, INNER),
        f"{layer}.input_layernorm.weight": (WIDTH,),
        f"{layer}.post_attention_layernorm.weight": (WIDTH,),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCABULARY, WIDTH),
    }
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


def engine(whole: dict[str, torch.Tensor], ranks: int, rank: int) -> dict[str, torch.Tensor]:
    """What a rank of vLLM holds, fused and padded as its documentation says; written without our table."""
    layer, rows = "model.layers.0", lambda tensor: tensor.chunk(ranks, 0)[rank]
    copies = max(1, ranks // KV_HEADS)
    keys = lambda tensor: tensor.chunk(ranks // copies, 0)[rank // copies]  # noqa: E731
    padded = lambda tensor: rows(torch.cat([tensor, torch.zeros(128 - VOCABULARY, WIDTH, dtype=tensor.dtype)]))  # noqa: E731
    found = {name: padded(whole[name]).clone() for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for kind in ("weight", "bias"):
        q, k, v = (whole[f"{layer}.self_attn.{part}_proj.{kind}"] for part in "qkv")
        found[f"{layer}.self_attn.qkv_proj.{kind}"] = torch.cat([rows(q), keys(k), keys(v)])
    gate, up = whole[f"{layer}.mlp.gate_proj.weight"], whole[f"{layer}.mlp.up_proj.weight"]
    found[f"{layer}.mlp.gate_up_proj.weight"] = torch.cat([rows(gate), rows(up)])
    for name in (f"{layer}.self_attn.o_proj.weight", f"{layer}.mlp.down_proj.weight"):
        found[name] = whole[name].chunk(ranks, 1)[rank].clone()
    for name in (f"{layer}.input_layernorm.weight", f"{layer}.post_attention_layernorm.weight", "model.norm.weight"):
        found[name] = whole[name].clone()
    return found


def sent_to(ranks: int, whole: dict[str, torch.Tensor]) -> Sent:
    sent = Sent(Layout(HEADS, KV_HEADS, ranks), torch.bfloat16)
    assert [name for name, _ in sent.watch(whole.items())] == list(whole)
    return sent


def check(ranks: int, whole: dict[str, torch.Tensor], ranks_hold: list[dict[str, torch.Tensor]]) -> None:
    layout, sent = Layout(HEADS, KV_HEADS, ranks), sent_to(ranks, whole)
    found = [held(one.items(), layout, sent.vocabulary, rank) for rank, one in enumerate(ranks_hold)]
    refuse_mismatch(sent.by_rank, found, layout, "0")


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_weights_that_arrived_are_those_that_were_sent_whatever_the_number_of_ranks(ranks: int) -> None:
    whole = weights()
    check(ranks, whole, [engine(whole, ranks, rank) for rank in range(ranks)])


def test_the_trainer_s_float32_is_compared_as_the_engine_rounds_it() -> None:
    check(1, weights(torch.float32), [engine(weights(torch.bfloat16), 1, 0)])


def swapped(held_by: list[dict[str, torch.Tensor]]) -> None:
    tensor = held_by[1]["model.layers.0.mlp.gate_up_proj.weight"]
    tensor[[0, 1]] = tensor[[1, 0]]


def zeroed(held_by: list[dict[str, torch.Tensor]]) -> None:
    held_by[1]["model.layers.0.self_attn.o_proj.weight"].zero_()


def dropped(held_by: list[dict[str, torch.Tensor]]) -> None:
    del held_by[0]["model.norm.weight"]


def skipped(held_by: list[dict[str, torch.Tensor]]) -> None:
    held_by.pop()


def exchanged(held_by: list[dict[str, torch.Tensor]]) -> None:
    held_by.reverse()


def foreign(held_by: list[dict[str, torch.Tensor]]) -> None:
    held_by[0]["model.layers.1.mlp.down_proj.weight"] = torch.zeros(WIDTH, INNER // 2, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (swapped, r"rank 1: model.layers.0.mlp.gate_proj.weight differs"),
        (zeroed, r"rank 1: model.layers.0.self_attn.o_proj.weight differs"),
        (dropped, r"rank 0: model.norm.weight is not there"),
        (skipped, r"rank 1: lm_head.weight is not there.* and \d+ more"),
        (exchanged, r"rank 0: .* differs"),
        (foreign, r"rank 0: model.layers.1.mlp.down_proj.weight was never sent"),
    ],
)
def test_every_fault_of_a_sync_is_found_and_named(fault: Any, said: str) -> None:
    whole = weights()
    held_by = [engine(whole, 2, rank) for rank in range(2)]
    fault(held_by)
    with pytest.raises(SyncMismatch, match=said):
        check(2, whole, held_by)


def test_one_changed_bit_changes_the_digest_and_strides_do_not() -> None:
    tensor = weights()["lm_head.weight"]
    other = tensor.clone()
    other.view(torch.int16)[3, 7] ^= 1
    assert digest(other) != digest(tensor) == digest(tensor.t().contiguous().t())


def test_a_tied_head_may_be_missing_on_the_engine() -> None:
    whole = weights()
    whole["lm_head.weight"] = whole["model.embed_tokens.weight"]
    found = engine(whole, 1, 0)
    del found["lm_head.weight"]
    layout, sent = Layout(HEADS, KV_HEADS, 1, is_tied=True), sent_to(1, whole)
    refuse_mismatch(sent.by_rank, [held(found.items(), layout, sent.vocabulary, 0)], layout, "0")


def test_a_part_of_every_weight_belongs_to_some_rank() -> None:
    whole, layout = weights(), Layout(HEADS, KV_HEADS, 2)
    for name, tensor in whole.items():
        parts = [part_of(tensor, layout, name, rank) for rank in range(2)]
        dim = layout.part(name, tuple(tensor.shape), 0).dim
        assert parts[0].equal(tensor) or torch.cat(parts, dim).equal(tensor)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.linear_attn.A_log.weight"])
def test_a_weight_without_a_table_is_refused_and_not_passed_over(name: str) -> None:
    with pytest.raises(UnknownLayout):
        Layout(HEADS, KV_HEADS, 2).part(name, (8, 8), 0)


# --- the rollout engine for CPUs, with its real model -----------------------------------------------------------------

MODEL = BUILT_IN["pocket-words"].directory


class Faulty:
    """A real engine, on the way to which something goes wrong."""

    def __init__(self, server: Server, fault: str) -> None:
        self._server, self._fault = server, fault

    async def load(self, found: dict[str, torch.Tensor], step: int | None) -> None:
        name = "model.layers.1.mlp.down_proj.weight"
        if self._fault == "swap":
            found[name][:, [0, 1]] = found[name][:, [1, 0]]
        elif self._fault == "zero":
            found[name].zero_()
        elif self._fault == "drop":
            del found[name]
        if self._fault != "skip":
            await self._server.load(found, step)

    async def digests(self, vocabulary: int) -> dict[str, int]:
        return await self._server.digests(vocabulary)


def sync(fault: str, model: Path = MODEL) -> None:
    """The weights of a step later than the one that the engine began with."""
    server = Server(str(model), seed=0, limit=4)
    later = {name: tensor + 0.01 for name, tensor in server.model.state_dict().items()}
    asyncio.run(Sender(server.layout).send(later.items(), 1, Faulty(server, fault), "0"))


def test_a_sync_that_worked_lets_the_engine_draw() -> None:
    sync("")


@pytest.mark.parametrize("fault", ["swap", "zero", "drop", "skip"])
def test_the_rollout_engine_of_cpus_finds_each_fault_before_it_draws(fault: str) -> None:
    with pytest.raises(SyncMismatch, match="weights did not arrive at the rollout engine 0"):
        sync(fault)
