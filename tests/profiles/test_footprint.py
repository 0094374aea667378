"""The closed form of memory: the tables of the design, and what must hold whatever the numbers are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles.footprint import (
    CONTEXT_BYTES,
    GIB,
    GRAPH_BYTES,
    MAX_LOGITS,
    MOST_HEAD_ROWS,
    Work,
    demand_of,
    head_rows_of,
    training,
    work_of,
)
from profiles.load import load_profile
from profiles.schema import Adapter, Azr, Model, Optimizer, Profile, Sampling
from profiles.shapes import ARCHITECTURES, shape_of

R1 = shape_of(ARCHITECTURES["r1-qwen-1.5b"])
QKVO = ("k_proj", "o_proj", "q_proj", "v_proj")
QLORA = Profile(
    name="table",
    model=Model(path="m", dtype="bfloat16", quantization="nf4", gradient_checkpointing=True),
    adapter=Adapter(rank=16, targets=QKVO, implementation="peft"),
)
NEAR = 0.02
"""GiB."""


def step_of(group: int, prompt: int, micro_batch: int = 1, completion: int = 512) -> Work:
    """The design's protocol: one group a step, no shared prompts, no mask but the causal one."""
    return Work(
        prompt_tokens=prompt, completion_tokens=completion, rollout_rows=group, prompts=1,
        tokens=micro_batch * (prompt + completion), width=prompt + completion, places=micro_batch * completion,
        head_rows=128, has_dense_mask=False,
    )  # fmt: skip


def gib(count: float) -> float:
    return count / GIB


def test_row_45_what_stays() -> None:
    load = demand_of(QLORA, R1, step_of(4, 128)).parts["load"]
    assert gib(load["weights"]) == pytest.approx(1.499, abs=0.001)
    assert (load["adapter"] + load["moments"]) / 2**20 == pytest.approx(74.8, abs=0.1)
    assert gib(sum(load.values())) == pytest.approx(1.572, abs=0.001)


@pytest.mark.parametrize(
    ("group", "prompt", "cache_mib", "generation"),
    [(4, 128, 70, 1.74), (4, 512, 112, 1.81), (8, 128, 140, 1.81), (8, 512, 224, 1.93)],
)
def test_row_45_the_table_of_generation(group: int, prompt: int, cache_mib: float, generation: float) -> None:
    demand = demand_of(QLORA, R1, step_of(group, prompt))
    assert demand.parts["rollout"]["cache"] / 2**20 == cache_mib
    assert gib(demand.phases["rollout"]) == pytest.approx(generation, abs=NEAR)


@pytest.mark.parametrize(
    ("micro_batch", "prompt", "peak", "device"),
    [
        (1, 128, 1.81, 2.40), (1, 512, 1.87, 2.47), (2, 128, 1.93, 2.53), (2, 512, 2.11, 2.73),
        (4, 128, 2.23, 2.86), (4, 512, 2.60, 3.26), (8, 128, 2.84, 3.52), (8, 512, 3.57, 4.31),
    ],
)  # fmt: skip
def test_row_45_the_table_of_training(micro_batch: int, prompt: int, peak: float, device: float) -> None:
    demand = demand_of(QLORA, R1, step_of(8, prompt, micro_batch))
    assert gib(demand.phases["train"]) == pytest.approx(peak, abs=NEAR)
    assert gib(demand.devices["train"]) == pytest.approx(device, abs=NEAR)


def test_row_45_bytes_of_a_token_and_of_the_head() -> None:
    """84 KiB kept, 165 KiB in the block that goes backward, 90 KiB where prompts are read; 10 C V and 9216 m R."""
    one, two = (demand_of(QLORA, R1, step_of(8, 512, m)).parts["train"] for m in (8, 9))
    assert two["block inputs"] - one["block inputs"] == 1024 * 84 * 1024
    assert two["block or head"] - one["block or head"] == 1024 * 165 * 1024
    small = demand_of(QLORA, R1, step_of(8, 128)).parts["train"]["block or head"]
    assert small == 10 * 128 * 151_936 + 9216 * 512
    assert demand_of(QLORA, R1, step_of(4, 512)).parts["score"]["activations"] == 1024 * 90 * 1024


@pytest.mark.parametrize(
    ("profile", "shape", "load_gib"),
    [("azr-0.5b", "qwen2.5-0.5b", 2.8), ("azr-3b-qlora", "qwen2.5-3b", 2.15), ("azr-3b-qlora-8gb", "qwen2.5-3b", 2.03)],
)
def test_what_was_measured_after_loading_is_what_was_expected(profile: str, shape: str, load_gib: float) -> None:
    """Measured on one H200; moments come with the first update, gradients and copies of an adapter while it works."""
    parts = demand_of(load_profile(profile).profile, shape_of(ARCHITECTURES[shape])).parts["load"]
    loaded = parts["weights"] + parts.get("copies", 0) + parts.get("adapter", 0) * 4 / 10
    assert gib(loaded) == pytest.approx(load_gib, abs=0.05)


def own(**changes: Any) -> Profile:
    sections = {
        "model": Model(path="m", dtype="bfloat16", gradient_checkpointing=True),
        "sampling": Sampling(max_prompt_tokens=512, max_completion_tokens=512, max_rows=16),
        "optimizer": Optimizer(micro_batch_size=4, row_tokens=1024),
        "azr": Azr(),
    }
    return Profile(name="own", **(sections | changes))  # type: ignore[arg-type]


def total(profile: Profile) -> int:
    return demand_of(profile, R1, card_bytes=16 * GIB).device


OPTIMIZER = own().optimizer


@pytest.mark.parametrize(
    ("less", "more"),
    [
        pytest.param(own(optimizer=replace(OPTIMIZER, kind="adamw8bit")), own(), id="moments in 8 bits"),
        pytest.param(own(optimizer=replace(OPTIMIZER, offload=True)), own(), id="moments in host memory"),
        pytest.param(own(), own(model=replace(own().model, gradient_checkpointing=False)), id="recomputation"),
        pytest.param(own(model=replace(own().model, offload_inputs=True)), own(), id="layers' inputs in host memory"),
        pytest.param(own(), own(model=replace(own().model, keep_gib=0.5)), id="no kept layers"),
        pytest.param(own(), own(optimizer=replace(OPTIMIZER, micro_batch_size=8)), id="smaller micro-batches"),
        pytest.param(own(adapter=Adapter(rank=16)), own(), id="an adapter"),
        pytest.param(
            own(adapter=Adapter(rank=16)), own(adapter=Adapter(rank=16, implementation="peft")), id="our own adapter"
        ),
        pytest.param(
            own(adapter=Adapter(rank=16), model=replace(own().model, quantization="nf4")),
            own(adapter=Adapter(rank=16)), id="a base in 4 bits",
        ),
        pytest.param(
            own(), own(sampling=replace(own().sampling, engine="vllm")), id="no second copy of the weights"
        ),
    ],
)  # fmt: skip
def test_what_saves_memory_is_seen_to(less: Profile, more: Profile) -> None:
    assert total(less) < total(more)


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_products_in_8_bits_take_a_byte_a_weight_and_more_for_each_token(quantization: str) -> None:
    plain = own(adapter=Adapter(rank=16), model=replace(own().model, quantization=quantization))
    rounded = replace(plain, model=replace(plain.model, fp8=True))
    work = work_of(plain, R1)
    more = sum(training(rounded, R1, work).values()) - sum(training(plain, R1, work).values())
    largest, weights = max(map(max, R1.linear.values())), max(a * b for a, b in R1.linear.values())
    matrices = (
        -2 * weights if quantization == "nf4" else 2 * weights
    )  # twice: two bytes before, none of a base in 16 bits
    assert more == work.tokens * (largest + 2 * R1.hidden_size) + matrices


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 64), st.integers(1, 512), st.integers(16, 4096), st.integers(16, 4096))
@example(1, 1, 60, 3977)  # a row that becomes too long for a mask of its own
def test_more_of_anything_never_needs_less(micro_batch: int, rows: int, prompt: int, completion: int) -> None:
    def profile(m: int, r: int, p: int, c: int) -> Profile:
        return own(
            sampling=Sampling(max_prompt_tokens=p, max_completion_tokens=c, max_rows=r),
            optimizer=Optimizer(micro_batch_size=m),
        )

    size = (micro_batch, rows, prompt, completion)
    here = demand_of(profile(*size), R1).phases
    for place in range(4):
        larger = [number + (number if i == place else 0) for i, number in enumerate(size)]
        after = demand_of(profile(*larger), R1).phases
        assert all(after[phase] >= here[phase] for phase in here if phase != "score")
        assert here["score"] <= here["train"]  # of which it takes as many rows of logits as fit


def test_a_prompt_that_is_shared_by_its_completions_is_one_row() -> None:
    """A unit of a prompt and all eight completions is packed whole, although a micro-batch is of two."""
    profile = own(optimizer=Optimizer(micro_batch_size=2, row_tokens=8192))
    work = work_of(profile, R1)
    assert (work.tokens, work.width, work.places) == (512 + 8 * 512, 512 + 8 * 512, 8 * 512)


def test_vllm_is_counted_beside_the_trainer_and_mostly_gone_while_it_sleeps() -> None:
    profile = own(sampling=replace(own().sampling, engine="vllm"))
    demand = demand_of(profile, R1, card_bytes=24 * GIB)
    assert demand.beside == {"rollout": int(0.4 * 24 * GIB), "score": GIB // 2, "train": GIB // 2}
    assert "cache" not in demand.parts["rollout"] and "score" in demand.parts
    awake = replace(profile, vllm=replace(profile.vllm, sleep=False))
    assert demand_of(awake, R1, card_bytes=24 * GIB).beside["train"] == int(0.4 * 24 * GIB)


@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", MOST_HEAD_ROWS),
        ("azr-3b-qlora", "qwen2.5-3b", MOST_HEAD_ROWS),
        ("azr-3b-qlora-8gb", "qwen2.5-3b", 886),
        ("azr-0.5b", "qwen2.5-0.5b", 540),
    ],
)
def test_logits_fill_what_a_block_takes_going_backward_and_cost_nothing(name: str, shape: str, rows: int) -> None:
    profile, sizes = load_profile(name).profile, shape_of(ARCHITECTURES[shape])
    least = dataclasses.replace(work_of(profile, sizes), head_rows=MAX_LOGITS // sizes.vocab_size)
    demand = demand_of(profile, sizes)
    assert head_rows_of(profile, sizes) == rows
    assert demand.phases["train"] == demand_of(profile, sizes, least).phases["train"]
    assert demand.phases.get("score", 0) <= demand.phases["train"]


@pytest.mark.parametrize(("rows", "lanes"), [(2, 8), (16, 64), (32, 64), (100, 100)])
def test_guesses_need_logits_of_their_own_for_as_many_rows_as_have_some(rows: int, lanes: int) -> None:
    profile = own()
    found = []
    for knobs in ({"max_rows": rows, "prompt_lookup_tokens": 3}, {"max_rows": lanes}):
        sampling = replace(profile.sampling, **knobs)
        grpo = replace(profile.grpo, groups_per_step=100)
        found.append(demand_of(replace(profile, sampling=sampling, grpo=grpo), R1).parts["rollout"]["logits"])
    assert found[0] == found[1]


def test_rollouts_that_share_a_cache_need_logits_for_all_of_them_and_may_be_read_again_at_full_length() -> None:
    profile = own()
    shared = replace(profile, sampling=replace(profile.sampling, overcommit=3.0))
    once, thrice = (demand_of(one, R1).parts["rollout"] for one in (profile, shared))
    assert thrice["cache"] == once["cache"] and thrice["logits"] == 3 * once["logits"]
    assert thrice["prompts"] >= once["prompts"]


def test_a_validation_beside_the_next_cycle_needs_the_memory_of_a_second_process() -> None:
    both, moments = demand_of(beside(QLORA), R1), demand_of(QLORA, R1).parts["load"]["moments"]
    assert both.phases == demand_of(QLORA, R1).phases  # of each process's own allocator
    rollout = demand_of(QLORA, R1).devices["rollout"]
    assert both.beside == dict.fromkeys(both.parts, rollout - int(1.08 * moments))


def test_a_worker_that_loads_beside_training_counts_where_it_needs_more_than_a_validation() -> None:
    """With the moments of all weights, it does: it has restored a checkpoint."""
    both = demand_of(beside(own()), R1)
    held = sum(both.parts["load"].values())
    assert both.beside == dict.fromkeys(both.parts, int(1.08 * (held + GRAPH_BYTES)) + CONTEXT_BYTES)


def beside(profile: Profile) -> Profile:
    return replace(profile, validation=replace(profile.validation, overlap=1))


@pytest.mark.parametrize("worker", ["grpo", "azr"])
def test_rollouts_that_are_drawn_beside_an_update_need_their_memory_beside_its_own(worker: str) -> None:
    profile = own()
    beside = replace(profile, run=replace(profile.run, worker=worker, overlap=1))
    apart = demand_of(replace(beside, run=replace(beside.run, overlap=0)), R1)
    both = demand_of(beside, R1)
    stays, drawing = apart.phases["load"], apart.phases["rollout"]
    assert both.phases["train"] == apart.phases["train"] + drawing - stays
    assert both.phases["rollout"] == drawing and both.worst == "train"
    kept = sum(apart.parts["rollout"][name] for name in ("cache", "graph"))
    assert sum(both.parts["score"].values()) >= stays + kept


@pytest.mark.parametrize("worker", ["grpo", "azr"])
def test_a_card_that_draws_holds_the_weights_and_the_rollouts_and_the_other_trains_as_if_alone(worker: str) -> None:
    profile = own(adapter=Adapter(rank=16, targets=("q_proj", "v_proj")))
    one = replace(profile, run=replace(profile.run, worker=worker))
    two = replace(one, run=replace(one.run, overlap=1, sampler_device="cuda:1"))
    alone, both = demand_of(one, R1), demand_of(two, R1)
    assert {name: both.parts[name] for name in ("load", "train")} == {
        name: alone.parts[name] for name in ("load", "train")
    }
    assert both.parts["score"].keys() == {"weights", "moments", "adapter", "activations", "logits", "mask"}
    assert both.parts["rollout"] == {name: size for name, size in alone.parts["rollout"].items() if name != "moments"}
    assert both.devices["rollout"] - int(1.08 * both.phases["rollout"]) == both.context  # its own


def test_a_second_card_holds_weights_that_are_all_trained_once_and_nothing_of_the_optimiser() -> None:
    profile = own()
    full = replace(profile, adapter=replace(profile.adapter, rank=0), run=replace(profile.run, overlap=1))
    two = replace(full, run=replace(full.run, sampler_device="cuda:1"))
    found = demand_of(two, R1).parts["rollout"]
    assert found["weights"] == demand_of(full, R1).parts["load"]["weights"]
    assert not {"moments", "copies", "adapter"} & found.keys()
