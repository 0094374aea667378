"""Whether a profile fits a card, what would, and which engine is picked."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.planner import choose_engine, nearest, plan_of
from profiles.footprint import GIB
from profiles.knobs import with_values
from profiles.load import load_profile
from profiles.rules import check
from profiles.schema import Profile
from profiles.shapes import ARCHITECTURES, shape_of

SHAPES = {name: shape_of(config) for name, config in ARCHITECTURES.items()}
HALF = SHAPES["qwen2.5-0.5b"]
CARDS = {"azr-0.5b": ("qwen2.5-0.5b", 12), "azr-3b-qlora": ("qwen2.5-3b", 16), "azr-3b-qlora-8gb": ("qwen2.5-3b", 8)}


def profile(name: str = "azr-0.5b", **changes: Any) -> Profile:
    return with_values(load_profile(name).profile, {key.replace("__", "."): value for key, value in changes.items()})


def parts_on(name: str, gpus: int) -> Any:
    shape = SHAPES[CARDS[name][0]]
    return plan_of(profile(name, optimizer__kind="adamw", run__gpus=gpus), shape, None).demand.parts


def test_several_gpus_divide_weights_that_are_all_trained_and_the_rollouts() -> None:
    parts = [parts_on("azr-0.5b", gpus) for gpus in (1, 2, 4)]
    one, two, four = (each["train"] for each in parts)
    assert one["weights"] == two["weights"] == four["weights"]
    for part in ("moments", "gradients", "copies"):
        assert two.get(part, 0) == one.get(part, 0) // 2 and four.get(part, 0) == one.get(part, 0) // 4
    assert "shards" not in one and two["shards"] == 2 * four["shards"] > 0
    assert parts[0]["rollout"]["cache"] >= parts[2]["rollout"]["cache"]


def test_several_gpus_each_hold_an_adapter_and_its_moments_whole() -> None:
    one, four = parts_on("azr-3b-qlora", 1), parts_on("azr-3b-qlora", 4)
    assert {name: one["train"][name] for name in ("weights", "adapter", "moments")} == {
        name: four["train"][name] for name in ("weights", "adapter", "moments")
    }
    assert "shards" not in four["train"] and "exchange" not in four["train"]


def test_gpus_of_other_hosts_count_like_those_of_one() -> None:
    over = [profile(optimizer__kind="adamw", run__gpus=gpus, run__hosts=hosts) for gpus, hosts in ((4, 1), (2, 2))]
    one, two = (plan_of(each, HALF, None).demand.parts for each in over)
    assert one == two


TWO_CARDS = {"run__overlap": 1, "run__sampler_device": "cuda:1", "sampling__engine": "native", "sampling__fallback": ()}


def usable(gigabytes: float) -> int:
    return int((gigabytes - 0.3) * GIB)


@pytest.mark.parametrize("name", CARDS)
def test_a_shipped_profile_fits_the_card_that_it_is_for(name: str) -> None:
    shape, gigabytes = CARDS[name]
    plan = plan_of(profile(name), SHAPES[shape], usable(gigabytes))
    assert plan.fits and not plan.is_tight


@pytest.mark.parametrize(
    ("changes", "gigabytes", "expected"),
    [
        pytest.param({}, 12, {}, id="it fits as it is"),
        pytest.param(
            {"model__gradient_checkpointing": False}, 12, {"model.gradient_checkpointing": True}, id="layers twice"
        ),
        pytest.param({"validation__overlap": 1}, 12, {"validation.overlap": 0}, id="no validation beside training"),
        pytest.param({"optimizer__micro_batch_size": 16}, 12, {"optimizer.micro_batch_size": 8}, id="half of it"),
        pytest.param(
            {**TWO_CARDS, "optimizer__micro_batch_size": 16}, 12,
            {"optimizer.micro_batch_size": 8}, id="half of it on the card that trains",
        ),
        pytest.param(
            {**TWO_CARDS, "sampling__max_rows": 256}, 12,
            {"sampling.max_rows": 128}, id="fewer rollouts on the card that draws",
        ),
        pytest.param({"sampling__max_rows": 256}, 12, {"sampling.max_rows": 128}, id="fewer rollouts side by side"),
        pytest.param(
            {"optimizer__kind": "adamw"}, 8, {"optimizer.micro_batch_size": 1, "sampling.max_rows": 16,
             "optimizer.row_tokens": 4096, "optimizer.kind": "adamw8bit"}, id="moments in 8 bits",
        ),
        pytest.param({}, 5, {"optimizer.kind": "adamw", "optimizer.offload": True,
                             "optimizer.row_tokens": 4096, "optimizer.micro_batch_size": 1,
                             "sampling.max_rows": 32}, id="moments in host memory"),
        pytest.param(
            {"sampling__engine": "vllm", "vllm__sleep": False}, 12, {"vllm.sleep": True}, id="vLLM asleep in an update"
        ),
    ],
)  # fmt: skip
def test_the_nearest_settings_that_fit(changes: dict[str, Any], gigabytes: float, expected: dict[str, Any]) -> None:
    mine = profile(**changes)
    found = nearest(mine, HALF, usable(gigabytes), int(gigabytes * GIB))
    if expected.get("sampling.max_rows") and found is not None:
        expected = expected | {"sampling.max_rows": found["sampling.max_rows"]}
    assert found == expected
    assert plan_of(with_values(mine, found), HALF, usable(gigabytes), int(gigabytes * GIB)).fits


def test_long_rows_that_fit_in_no_other_way_leave_their_layers_inputs_in_host_memory() -> None:
    shape = SHAPES["r1-qwen-1.5b"]
    mine = profile("grpo-1.5b-12gb-long", sampling__max_completion_tokens=16_384, sampling__max_rows=1,
                   optimizer__micro_batch_size=1)  # fmt: skip
    kept, offloaded = (
        plan_of(with_values(mine, {"model.offload_inputs": choice}), shape, None).demand for choice in (False, True)
    )
    assert kept.parts["train"]["block inputs"] == 14 * offloaded.parts["train"]["block inputs"]  # 28 layers, or 2
    middle = (kept.devices["train"] + offloaded.devices["train"]) // 2
    assert nearest(mine, shape, middle) == {"model.offload_inputs": True}
    assert nearest(mine, shape, kept.device) == {}


def test_memory_for_kept_layers_is_given_up_before_anything_else_of_the_update() -> None:
    shape, mine = SHAPES["r1-qwen-1.5b"], profile("grpo-1.5b-8gb", model__keep_gib=2.0)
    kept, without = (plan_of(one, shape, None).demand for one in (mine, with_values(mine, {"model.keep_gib": 0.0})))
    assert kept.phases["train"] - without.phases["train"] == 2 << 30
    assert nearest(mine, shape, without.device)["model.keep_gib"] == 0.0  # type: ignore[index]
    assert nearest(mine, shape, kept.device) == {}


def test_nothing_fits_a_card_that_does_not_hold_the_weights() -> None:
    assert nearest(profile("azr-3b-qlora-8gb"), SHAPES["qwen2.5-3b"], usable(2)) is None


def test_a_run_that_has_begun_is_not_told_to_change_what_cannot_change() -> None:
    mine = profile(optimizer__kind="adamw")
    assert nearest(mine, HALF, usable(8)) is not None
    assert nearest(mine, HALF, usable(5), is_new=True) != nearest(mine, HALF, usable(5), is_new=False)
    found = nearest(mine, HALF, usable(8), is_new=False) or {}
    assert not {"optimizer.kind", "optimizer.offload"} & set(found)


@settings(max_examples=25, deadline=None)
@given(st.floats(2.5, 24), st.sampled_from([1, 4, 32]), st.sampled_from([8, 64, 512]), st.booleans())
def test_what_is_suggested_fits_is_valid_and_changes_nothing_that_is_learnt(
    gigabytes: float, micro_batch: int, rows: int, has_vllm: bool
) -> None:
    mine = profile(optimizer__micro_batch_size=micro_batch, sampling__max_rows=rows,
                   sampling__engine="vllm" if has_vllm else "native",
                   sampling__fallback=("native",) if has_vllm else ())  # fmt: skip
    found = nearest(mine, HALF, usable(gigabytes), int(gigabytes * GIB))
    if found is None:
        assert gigabytes < 6
        return
    after = with_values(mine, found)
    assert plan_of(after, HALF, usable(gigabytes), int(gigabytes * GIB)).fits and check(after) == []
    assert (after.azr, after.adapter, after.model.path) == (mine.azr, mine.adapter, mine.model.path)
    assert after.sampling.max_completion_tokens == mine.sampling.max_completion_tokens
    assert (found == {}) == plan_of(mine, HALF, usable(gigabytes), int(gigabytes * GIB)).fits


def test_a_larger_card_never_gets_smaller_settings_while_the_moments_stay() -> None:
    mine = profile(optimizer__micro_batch_size=32, sampling__max_rows=512)
    sizes = []
    for gigabytes in (8, 10, 12, 16, 24, 48):
        after = with_values(mine, nearest(mine, HALF, usable(gigabytes)) or {})
        sizes.append((after.optimizer.micro_batch_size, after.sampling.max_rows))
    assert sizes == sorted(sizes) and len(set(sizes)) > 3


AUTO = {"sampling__engine": "auto", "sampling__fallback": ()}
PLAIN = {"model__dtype": "float32"}
"""With it `native` would be the plain decoder."""
OTHER = dataclasses.replace(shape_of(ARCHITECTURES["qwen2.5-0.5b"]), is_captured=False)
"""A model whose steps `native` does not capture."""
FOREIGN = shape_of(ARCHITECTURES["qwen2.5-0.5b"] | {"model_type": "mixtral"})
ODD = shape_of(ARCHITECTURES["qwen2.5-0.5b"] | {"head_dim": 84})
OLD, NEW = (7, 5), (8, 6)


@pytest.mark.parametrize(
    ("gigabytes", "has_vllm", "changes", "engine", "why"),
    [
        pytest.param(24, True, {}, "native", "captured steps", id="steps are captured, also where there is vLLM"),
        pytest.param(24, False, {}, "native", "captured steps", id="steps are captured, and there is no vLLM"),
        pytest.param(24, True, {"sampling__max_rows": 512}, "native", "captured steps", id="more rows than measured"),
        pytest.param(24, True, {"capability": None}, "native", "captured steps", id="a card that tells no age"),
        pytest.param(48, True, PLAIN, "vllm", "compute in bfloat16", id="float32: room and vLLM"),
        pytest.param(48, False, PLAIN, "native", "vLLM is not installed", id="float32: no vLLM"),
        pytest.param(8, True, PLAIN, "native", "vLLM does not fit", id="float32: a card that is tight"),
        pytest.param(48, True, PLAIN | {"vllm__gpu_memory_utilization": 0.05}, "native", "vLLM does not fit",
                     id="float32: a share that holds no rollouts"),
        pytest.param(24, True, {"capability": OLD}, "native", "RTX 30 series", id="old: vLLM has no bfloat16"),
        pytest.param(24, True, {"capability": OLD, "vllm__dtype": "float16"}, "vllm", "RTX 30 series", id="old"),
        pytest.param(24, True, {"shape": ODD}, "vllm", "heads of 84", id="heads of another size"),
        pytest.param(24, True, {"shape": OTHER}, "vllm", "no captured steps for", id="another architecture"),
        pytest.param(24, False, {"shape": OTHER}, "native", "no captured steps for", id="another one, no vLLM"),
        pytest.param(24, False, {"shape": FOREIGN}, "hf", "no captured steps for", id="not of our own code, no vLLM"),
        pytest.param(24, True, {"run__device": "cpu"}, "native", "no known GPU", id="on a CPU"),
        pytest.param(None, True, {}, "native", "no known GPU", id="no card known"),
    ],
)  # fmt: skip
def test_the_planner_picks_the_engine_and_says_why(
    gigabytes: float | None, has_vllm: bool, changes: dict[str, Any], engine: str, why: str
) -> None:
    facts: dict[str, Any] = {"shape": HALF, "capability": NEW} | changes
    shape, capability = facts.pop("shape"), facts.pop("capability")
    bytes_ = None if gigabytes is None else usable(gigabytes)
    settled, said = choose_engine(profile(**AUTO, **facts), shape, bytes_, has_vllm=has_vllm, capability=capability)
    assert settled.sampling.engine == engine and check(settled) == [] and why in said


def test_an_engine_that_is_named_is_left_alone_and_fallbacks_stay_others() -> None:
    named = profile(sampling__engine="hf", sampling__fallback=())
    assert choose_engine(named, HALF, usable(80), has_vllm=True) == (named, "")
    mine = profile(**AUTO | PLAIN | {"sampling__fallback": ("native", "hf")})
    for size, engine, others in ((8, "native", ("hf",)), (48, "vllm", ("native", "hf"))):
        settled, _ = choose_engine(mine, HALF, usable(size), has_vllm=True)
        assert (settled.sampling.engine, settled.sampling.fallback) == (engine, others)


def test_a_cap_is_the_card() -> None:
    mine = profile(memory__cap_gib=7.6)
    assert not plan_of(mine, HALF, usable(140)).fits
    assert plan_of(mine, HALF, usable(140)).usable_bytes == int(7.6 * GIB)
    assert plan_of(replace(mine, memory=replace(mine.memory, cap_gib=11.0)), HALF, None).fits
