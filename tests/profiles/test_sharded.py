"""Memory of sharded full fine-tuning: the guide's cases, in GiB, and what each part obeys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.footprint import GIB
from profiles.shapes import ARCHITECTURES, CLUSTER_ARCHITECTURES, shape_of
from profiles.sharded import Sharding, cache_tokens, demand_of, divides_heads, state, total_state, training

SMALL = shape_of(CLUSTER_ARCHITECTURES["olmo3-7b"])
LARGE = shape_of(CLUSTER_ARCHITECTURES["olmo3-32b"])
CARD = int(95.6 * GIB)


def on(shards: int, tokens: int, **more: object) -> Sharding:
    return Sharding("zero3", shards, tokens, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "job", "phase", "gib"),
    [
        pytest.param(SMALL, on(2, 18_432, logit_rows=2048), "train", 81.9, id="7B on 2"),
        pytest.param(SMALL, on(2, 18_432), "train", 98.0, id="7B on 2, whole logits"),
        pytest.param(SMALL, on(2, 18_432, gathers_whole=True), "sync", 80.2, id="7B on 2, whole gather"),
        pytest.param(SMALL, on(2, 10_240, logit_rows=2048), "train", 77.5, id="7B on 2, 10k"),
        pytest.param(SMALL, on(2, 10_240), "train", 85.5, id="7B on 2, 10k, whole logits"),
        pytest.param(LARGE, on(16, 5120, logit_rows=2048), "train", 49.0, id="32B on 16, 5k"),
        pytest.param(LARGE, on(16, 10_240, logit_rows=2048), "train", 54.8, id="32B on 16"),
        pytest.param(LARGE, on(16, 10_240), "train", 62.8, id="32B on 16, whole logits"),
        pytest.param(LARGE, on(16, 10_240, gathers_whole=True), "sync", 100.2, id="32B on 16, whole gather"),
        pytest.param(LARGE, on(16, 10_240), "sync", 39.2, id="32B on 16, gather by tensor"),
        pytest.param(LARGE, on(16, 10_240, logit_rows=2048, has_reference=True), "train", 58.7, id="32B on 16, KL"),
        pytest.param(LARGE, on(20, 10_240, logit_rows=2048), "train", 47.7, id="32B on 20"),
        pytest.param(LARGE, on(8, 5120, logit_rows=2048), "train", 84.4, id="32B on 8, 5k"),
        pytest.param(LARGE, on(8, 5120), "train", 87.5, id="32B on 8, 5k, whole logits"),
        pytest.param(LARGE, on(8, 10_240), "train", 98.3, id="32B on 8"),
        pytest.param(LARGE, on(8, 5120, secondary=8, gathers_whole=True), "train", 95.3, id="32B on 8, zpg 8"),
        pytest.param(LARGE, on(8, 5120, secondary=8, gathers_whole=True), "first sync", 135.6, id="32B on 8, gather"),
        pytest.param(LARGE, on(8, 5120, logit_rows=2048, has_reference=True), "train", 92.3, id="32B on 8, KL"),
    ],
)
def test_the_cases_of_the_guide(shape: object, job: Sharding, phase: str, gib: float) -> None:
    assert demand_of(shape, job).devices[phase] / GIB == pytest.approx(gib, rel=0.01)  # type: ignore[arg-type]


def test_the_state_of_a_32b_model_is_516_gb_or_580_with_gradients_in_float32() -> None:
    assert [round(size / 1e9) for size in total_state(LARGE)] == [516, 580]
    assert round(12 * LARGE.parameters / 1e9) == 387  # the guide's 384 are 12 bytes x 32e9: master and moments alone


@pytest.mark.parametrize(
    ("tensor_parallel", "share", "tokens"),
    [(1, 0.85, 75e3), (2, 0.55, 160e3), (2, 0.85, 395e3), (4, 0.85, 1.04e6)],
)
def test_tokens_that_an_engine_caches(tensor_parallel: int, share: float, tokens: float) -> None:
    found = cache_tokens(LARGE, tensor_parallel=tensor_parallel, share=share, card_bytes=CARD)
    assert found == pytest.approx(tokens, rel=0.01)


def test_a_32b_model_does_not_fit_an_engine_of_one_gpu_at_half_of_it() -> None:
    assert cache_tokens(LARGE, tensor_parallel=1, share=0.55, card_bytes=CARD) < 0


def test_fsdp2_keeps_16_bytes_a_parameter_and_zero3_18() -> None:
    for engine, bytes_ in (("fsdp2", 16), ("zero3", 18)):
        held = state(LARGE, replace(on(32, 1), engine=engine))  # type: ignore[arg-type]
        assert sum(held.values()) == pytest.approx(bytes_ * LARGE.parameters / 32, rel=1e-6)


def test_a_pass_with_entropy_is_within_a_tenth_of_what_two_gpus_measured() -> None:
    job = Sharding("fsdp2", shards=2, tokens=5120, has_entropy=True)
    planned = demand_of(shape_of(ARCHITECTURES["qwen2.5-0.5b"]), job).phases["train"]
    assert planned / GIB == pytest.approx(21.85, rel=0.1)


def test_verl_needs_as_much_for_logits_to_score_as_to_train_and_less_than_with_entropy() -> None:
    plain, entropy = (
        demand_of(LARGE, Sharding("fsdp2", 32, 10_240, has_entropy=has_entropy)).parts for has_entropy in (False, True)
    )
    assert plain["log-probs"]["logits"] == plain["train"]["logits"] < entropy["train"]["logits"]
    assert entropy["log-probs"] == plain["log-probs"]


def test_twice_as_many_gpus_hold_half_of_the_state_each() -> None:
    one, two = (sum(state(LARGE, on(shards, 1)).values()) for shards in (8, 16))
    assert one == pytest.approx(2 * two, rel=1e-6)


def test_what_is_offloaded_is_not_on_the_gpu() -> None:
    held = state(LARGE, on(8, 1, offloads_optimizer=True))
    assert set(held) == {"weights", "gradients"}
    assert set(state(LARGE, on(8, 1, offloads_optimizer=True, offloads_weights=True))) == {"gradients"}


def test_an_engine_on_the_same_gpu_is_awake_in_rollout_and_sync_and_asleep_while_it_trains() -> None:
    job = Sharding("fsdp2", 32, 10_240, rollout_bytes=40 * GIB)
    demand = demand_of(LARGE, job)
    awake = {phase for phase, size in demand.beside.items() if size == 40 * GIB}
    assert awake == {"rollout", "sync"} and 0 < demand.beside["train"] < GIB
    assert "rollout" not in demand_of(LARGE, replace(job, rollout_bytes=0)).parts


def test_the_second_copy_is_not_there_at_the_first_sync() -> None:
    parts = demand_of(LARGE, on(8, 5120, secondary=8)).parts
    assert [phase for phase in parts if "secondary copy" in parts[phase]] == ["log-probs", "train", "sync"]


def test_without_recomputation_every_block_keeps_its_activations() -> None:
    kept = training(LARGE, on(8, 1000, is_checkpointed=False))["activations"]
    assert kept == 64 * 1000 * (22 * 5120 + 4 * 1024 + 8 * 27_648)


@pytest.mark.parametrize(("size", "divides"), [(1, True), (2, True), (8, True), (3, False), (5, False), (40, False)])
def test_an_engine_needs_a_number_of_gpus_that_divides_both_kinds_of_heads(size: int, divides: bool) -> None:
    assert divides_heads(LARGE, size) == divides
