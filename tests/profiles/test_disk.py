"""What the retention rule keeps at most, in bytes, worked by hand."""

from __future__ import annotations

import pytest

from profiles.disk import (
    BALLAST_BYTES,
    IN_FLIGHT,
    IN_FLIGHT_LARGE,
    INLINE_BYTES,
    buffer_bytes,
    checkpoint_bytes,
    disk_plan,
    rollout_bytes,
    state_bytes,
)
from profiles.knobs import with_values
from profiles.load import load_profile
from profiles.schema import Profile
from profiles.shapes import ARCHITECTURES, Shape, shape_of

HALF = shape_of(ARCHITECTURES["qwen2.5-0.5b"])
BIG = INLINE_BYTES + 1


def profile(name: str = "azr-0.5b", **changes: object) -> Profile:
    return with_values(load_profile(name).profile, {key.replace("__", "."): value for key, value in changes.items()})


def test_a_bfloat16_model_stores_its_weights_float32_copies_and_moments() -> None:
    weights = 494_032_768
    assert HALF.parameters == weights
    assert state_bytes(profile(optimizer__kind="adamw"), HALF) == (2 + 4 + 8) * weights


@pytest.mark.parametrize(
    ("changes", "bytes_of_parameter"),
    [
        ({"model__dtype": "float32", "optimizer__kind": "adamw"}, 4 + 8),
        ({"model__dtype": "float32", "optimizer__kind": "adamw", "optimizer__offload": True}, 4 + 8 + 4),
        ({"optimizer__kind": "adamw", "optimizer__offload": True}, 2 + 8 + 4),
    ],
)
def test_what_is_stored_of_each_parameter(changes: dict[str, object], bytes_of_parameter: int) -> None:
    assert state_bytes(profile(**changes), HALF) == bytes_of_parameter * HALF.parameters


def test_moments_of_8_bits_take_two_bytes_and_a_thirty_second_of_one_besides() -> None:
    exact, coded = (state_bytes(profile(optimizer__kind=kind), HALF) for kind in ("adamw", "adamw8bit"))
    saved = (exact - coded) / HALF.parameters
    assert 8 - 2 - 8 / 256 - 0.01 < saved < 8 - 2 - 8 / 256


def test_an_adapter_is_stored_alone_in_float32() -> None:
    shape = shape_of(ARCHITECTURES["qwen2.5-3b"])
    lora = profile("azr-3b-qlora", optimizer__kind="adamw")
    trained = shape.adapter_parameters(lora.adapter.rank, lora.adapter.targets)
    assert state_bytes(lora, shape) == (4 + 8) * trained


def test_buffers_are_bounded_by_what_a_run_with_a_last_cycle_can_find() -> None:
    endless = profile("pocket")
    one = 3 * (512 + 4 * 128)
    assert buffer_bytes(endless) == 16384 * one
    short = with_values(endless, {"run.max_cycles": 2, "run.steps_per_cycle": 3})
    assert buffer_bytes(short) == (endless.azr.seed_tasks + 2 * 3 * 12) * one
    assert buffer_bytes(with_values(short, {"data.sources": ("tasks.jsonl",)})) == 16384 * one
    assert buffer_bytes(profile("pocket-grpo")) == 0


def test_rollouts_are_those_since_the_last_checkpoint_and_those_that_are_kept() -> None:
    base = profile("pocket-grpo")
    step = rollout_bytes(base) // base.run.checkpoint_every
    assert (
        rollout_bytes(with_values(base, {"retention.keep_rollout_steps": 7})) == (base.run.checkpoint_every + 7) * step
    )


@pytest.mark.parametrize(
    ("changes", "one", "for_good", "expected"),
    [
        pytest.param({}, 10, 0, 3 + 2 + 1 + IN_FLIGHT, id="head, two ancestors, two suites, the seed phase, in flight"),
        pytest.param({}, BIG, 0, 3 + 2 + 1 + IN_FLIGHT_LARGE, id="large ones wait for their hash"),
        pytest.param({"retention__keep_ancestors": 1}, 10, 0, 2 + 2 + 1 + IN_FLIGHT, id="one ancestor"),
        pytest.param({"retention__keep_every": 0}, 10, 0, 3 + 2 + IN_FLIGHT, id="no Nth cycle"),
        pytest.param({"run__max_cycles": 45}, 10, 0, 3 + 2 + 5 + IN_FLIGHT, id="cycles 0, 10, 20, 30 and 40"),
        pytest.param({}, 10, 9, 3 + 2 + 9 + IN_FLIGHT, id="nine Nth cycles are there already"),
        pytest.param({"validation__suites": ("cruxeval-i",)}, 10, 0, 3 + 1 + 1 + IN_FLIGHT, id="one suite"),
    ],
)
def test_how_many_checkpoints_there_are_at_most(
    changes: dict[str, object], one: int, for_good: int, expected: int
) -> None:
    made = profile(**changes)
    assert disk_plan(made, one, for_good).total == one * expected + rollout_bytes(made) + BALLAST_BYTES


def test_only_a_run_without_a_last_cycle_grows() -> None:
    assert disk_plan(profile(), 10).growth == 10
    assert disk_plan(profile(run__max_cycles=3), 10).growth == 0
    assert disk_plan(profile(retention__keep_every=0), 10).growth == 0


@pytest.mark.parametrize(("worker", "shape", "is_known"), [("azr-0.5b", None, False), ("fake", None, True)])
def test_a_model_that_is_not_there_yet_is_not_planned(worker: str, shape: Shape | None, is_known: bool) -> None:
    assert (checkpoint_bytes(profile(worker), shape) is not None) == is_known
