"""The memory of a worker: peaks by phase, what is left over, what was expected, the cap; without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB, GRAPH_BYTES, demand_of, graph_tokens, work_of
from profiles.load import load_profile
from profiles.shapes import ARCHITECTURES, shape_of
from workers.failures import phase_of
from workers.memory import host, phases
from workers.memory.phases import LEAK_BYTES, HostGauge, Memory, Reading, applied_once

MIB = 1 << 20


class Script:
    """A gauge of a card: `peak` is the highest of what it was told to be since the last reset."""

    unit = "allocated"

    def __init__(self) -> None:
        self.now = self.high = self.held = 0

    def be(self, *allocated: int) -> None:
        for one in allocated:
            self.now, self.high = one * MIB, max(self.high, one * MIB)

    def reset(self) -> None:
        self.high = self.now

    def read(self) -> Reading:
        return Reading(self.now, self.high, self.high + MIB, self.high + 500 * MIB, self.held)


def measured(expected: dict[str, int] | None = None) -> tuple[Memory, Script, list[str]]:
    gauge, said = Script(), []
    return Memory(gauge, said.append, expected or {}), gauge, said


def mib(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("memory/"): value / MIB for name, value in metrics.items()}


def test_each_phase_has_its_own_peak() -> None:
    memory, gauge, said = measured()
    gauge.be(100)
    with memory.phase("rollout"):
        gauge.be(300, 110)
    with memory.phase("train"):
        gauge.be(250, 110)
    assert mib(memory.take()) == {
        "rollout/allocated": 300, "rollout/reserved": 301, "rollout/device": 800,
        "train/allocated": 250, "train/reserved": 251, "train/device": 750,
    }  # fmt: skip
    assert memory.take() == {} and said == []


def test_a_phase_inside_another_counts_for_both() -> None:
    memory, gauge, _ = measured()
    with memory.phase("train"):
        gauge.be(200, 50)
        with memory.phase("score"):
            gauge.be(120, 60)
        gauge.be(70)
    found = mib(memory.take())
    assert (found["train/allocated"], found["score/allocated"]) == (200, 120)
    with memory.phase("train"):
        gauge.be(60)
        with memory.phase("score"):
            gauge.be(400, 60)
    assert mib(memory.take())["train/allocated"] == 400


def test_a_phase_of_another_card_is_measured_there_and_counts_in_no_phase_around_it() -> None:
    here, there = Script(), Script()
    memory = Memory(here, elsewhere={"rollout": there})
    there.be(900, 20)
    with memory.phase("train"):
        here.be(70)
        with memory.phase("rollout"):
            there.be(500, 20)
            here.be(80)
    found = mib(memory.take())
    assert (found["rollout/allocated"], found["train/allocated"]) == (500, 80)
    with pytest.raises(torch.OutOfMemoryError) as caught, memory.phase("rollout"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert phase_of(caught.value) == "rollout"


def test_a_phase_that_comes_twice_in_a_step_has_its_highest_peak() -> None:
    memory, gauge, _ = measured()
    for peak in (300, 200):
        with memory.phase("rollout"):
            gauge.be(peak, 100)
    assert mib(memory.take())["rollout/allocated"] == 300


def test_an_error_is_marked_with_the_innermost_phase_and_measured_all_the_same() -> None:
    memory, gauge, _ = measured()
    with pytest.raises(torch.OutOfMemoryError) as caught, memory.phase("train"), memory.phase("score"):
        gauge.be(900)
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert phase_of(caught.value) == "score"
    assert mib(memory.take())["train/allocated"] == 900


def steps(left: Sequence[int]) -> list[str]:
    """What is said in steps after each of which so many MiB are allocated."""
    memory, gauge, said = measured()
    for one in left:
        with memory.phase("train"):
            gauge.be(5000, one)
        memory.take()
    return said


def test_what_is_left_over_after_a_phase_again_is_told_and_nothing_fails() -> None:
    growth = LEAK_BYTES // MIB + 1
    (text,) = steps([100, 180, 180, 180 + growth, 180 + 2 * growth])
    assert "34 MiB more" in text and "after train (214 MiB)" in text


@pytest.mark.parametrize(
    "left",
    [
        pytest.param([100, 180, 180, 180], id="the moments come with the first update"),
        pytest.param([100, 180, 190, 196, 190], id="a little more or less"),
        pytest.param([100, 180, 90, 180], id="less, then as before"),
        pytest.param([100, 180, 180, 212, 212, 220], id="more once: a library's workspace"),
    ],
)
def test_what_is_no_leak_is_not_told(left: list[int]) -> None:
    assert steps(left) == []


def test_a_leak_is_told_from_the_second_time_on_that_it_has_grown_so_much() -> None:
    told = steps([100, 100, 120, 140, 160])
    assert [text.partition(" ")[0] for text in told] == ["40", "60"]
    assert len(steps([100, 100, *range(105, 160, 5)])) == 1  # slowly, 20 at a time


def test_growth_of_two_phases_is_not_growth_of_one_twice() -> None:
    memory, gauge, said = measured()
    for rollout, train in ((100, 100), (100, 100), (132, 100), (132, 132), (132, 132)):
        for name, left in (("rollout", rollout), ("train", train)):
            with memory.phase(name):
                gauge.be(left)
        memory.take()
    assert said == []


@pytest.mark.parametrize(
    ("peak", "told"), [(100, 0), (119, 0), (121, 1), (20, 0)], ids=["exact", "near", "too much", "short answers"]
)
def test_a_peak_beyond_what_was_expected_is_told_once(peak: int, told: int) -> None:
    memory, gauge, said = measured({"train": 100 * MIB})
    for _ in range(3):
        with memory.phase("train"):
            gauge.be(peak, 10)
        assert mib(memory.take())["train/expected"] == 100
    assert len(said) == told


def test_a_rehearsal_compares_the_largest_shapes_both_ways() -> None:
    memory, gauge, said = measured({"train": 100 * MIB, "rollout": 100 * MIB, "load": 50 * MIB})
    with memory.phase("rollout"):
        gauge.be(60, 10)
    with memory.phase("train"):
        gauge.be(90, 10)
    facts = memory.rehearsed(moments=10 * MIB)
    assert facts["measured_bytes"] == 90 * MIB and facts["expected_peak_bytes"] == 100 * MIB
    assert facts["train_error"] == 0 and facts["rollout_error"] == pytest.approx(-0.3)
    assert said == ["the planner is off by -30% for rollout: see the event `memory`"]
    assert "rollout 0.06 GiB" in facts["text"] and memory.take() == {}


def test_what_an_engine_keeps_while_the_trainer_works_is_expected_beside_the_trainer_s_own() -> None:
    memory, gauge, said = measured({"train": 100 * MIB, "rollout": 100 * MIB})
    gauge.held = 50 * MIB
    with memory.phase("rollout"):
        gauge.be(100)
    with memory.phase("train"):
        gauge.be(150)
    facts = memory.rehearsed(moments=0)
    assert facts["train_error"] == facts["rollout_error"] == 0
    with memory.phase("train"):
        gauge.be(179)
    assert mib(memory.take())["train/expected"] == 150 and said == []


@pytest.mark.parametrize(
    ("name", "shape", "cache_gib", "usable_gib", "stays"),
    [
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", 1.09, 7.1, True),
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", 1.09, 5.1, False),
        ("azr-0.5b", "qwen2.5-0.5b", 3.0, 10.8, False),
        ("azr-0.5b", "qwen2.5-0.5b", 3.0, 23.0, True),
    ],
)
def test_a_cache_stays_beside_the_trainer_where_the_plan_leaves_room_for_it(
    name: str, shape: str, cache_gib: float, usable_gib: float, stays: bool
) -> None:
    profile = load_profile(name).profile
    room = phases.room_beside_trainer(profile, shape_of(ARCHITECTURES[shape]), int(usable_gib * GIB))
    assert (cache_gib * GIB <= room) is stays


@pytest.mark.parametrize(
    ("name", "shape", "usable_gib", "is_largest_captured"),
    [
        ("azr-3b-qlora-8gb", "qwen2.5-3b", 6.4, False),
        ("azr-qwen3-4b-12gb", "qwen3-4b", 10.6, False),
        ("azr-qwen3-4b-12gb", "qwen3-4b", 20.0, True),
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", 6.4, False),
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", 14.0, True),
    ],
)
def test_graphs_of_training_passes_fit_beside_the_plan_and_what_an_engine_keeps(
    name: str, shape: str, usable_gib: float, is_largest_captured: bool
) -> None:
    profile, sizes, usable = load_profile(name).profile, shape_of(ARCHITECTURES[shape]), int(usable_gib * GIB)
    room = phases.room_for_graphs(profile, sizes, usable)
    demand = demand_of(profile, sizes)
    beside = phases.room_beside_trainer(profile, sizes, usable)
    cache = demand.parts["rollout"]["cache"]
    prompts = min(phases.room_for_prompt_graphs(profile, sizes, usable), demand.parts["rollout"]["prompts"])
    assert 0 <= room <= beside - prompts - (cache if cache <= beside else 0)
    assert (graph_tokens(profile, sizes, room) >= work_of(profile, sizes).tokens) is is_largest_captured


def test_what_another_process_takes_of_the_card_does_not_count_for_one_with_a_cap_of_its_own() -> None:
    found, shape = load_profile("grpo-1.5b-8gb").profile, shape_of(ARCHITECTURES["r1-qwen-1.5b"])
    profile = replace(found, validation=replace(found.validation, overlap=1))
    for room_of in (phases.room_beside_trainer, phases.room_for_prompt_graphs):
        alone = room_of(found, shape, 7 * GIB)
        assert room_of(profile, shape, 7 * GIB, 140 * GIB) == alone > room_of(profile, shape, 7 * GIB, 8 * GIB)
        assert room_of(profile, shape, 7 * GIB) == room_of(profile, shape, 7 * GIB, 7 * GIB)


@pytest.mark.parametrize("where", ["one after another", "overlap", "sampler"])
@pytest.mark.parametrize("usable_gib", [6.0, 10.8, 23.0])
def test_graphs_over_prompts_fit_beside_what_is_planned_and_a_cache_that_stays(where: str, usable_gib: float) -> None:
    found = load_profile("azr-3b-qlora").profile
    run = replace(found.run, overlap=int(where != "one after another"))
    profile = replace(found, run=replace(run, sampler_device="cuda:1" if where == "sampler" else ""))
    shape = shape_of(ARCHITECTURES["qwen2.5-3b"])
    room = phases.room_for_prompt_graphs(profile, shape, int(usable_gib * GIB))
    demand = demand_of(profile, shape)
    kept = demand.parts["rollout"]["cache"] + GRAPH_BYTES if where == "one after another" else 0
    held = [demand.phases["rollout"]]
    if where != "sampler":
        held += [demand.phases["train"] + kept, demand.phases["load"]]
    graphs = room + demand.parts["rollout"]["dequantised"]
    left = phases.SPARE * usable_gib * GIB - phases.FRAGMENTATION * (max(held) + graphs)
    assert (left < 0) if room == 0 else abs(left) < 2**20


def test_a_cache_that_is_planned_beside_the_trainer_is_not_expected_twice() -> None:
    found = load_profile("grpo-1.5b-8gb").profile
    shape = shape_of(ARCHITECTURES["r1-qwen-1.5b"])
    demand = demand_of(replace(found, run=replace(found.run, overlap=1)), shape)
    expected = phases.expected_of(demand)
    assert expected["train"] == demand.phases["train"] - demand.parts["rollout"]["cache"]
    assert expected["rollout"] == demand.phases["rollout"]


def test_without_a_gpu_the_host_s_memory_is_measured() -> None:
    memory = Memory(HostGauge())
    with memory.phase("rollout"):
        block = torch.ones(16 << 20, dtype=torch.uint8)
        del block
    (name,) = memory.peaks()
    metrics = memory.take()
    assert list(metrics) == [f"memory/{name}/host"]
    assert metrics["memory/rollout/host"] >= 50 * MIB  # torch itself is larger than that


def test_the_highest_memory_of_a_worker_survives_the_peaks_of_phases() -> None:
    """Resetting the kernel's peak resets what getrusage tells as well."""
    memory = Memory(HostGauge())
    with memory.phase("rollout"):
        block = torch.ones(200 << 20, dtype=torch.uint8)
        del block
    before = host.highest()
    with memory.phase("train"):
        pass
    found = memory.take()
    assert host.highest() >= before >= found["memory/rollout/host"]
    assert found["memory/train/host"] <= found["memory/rollout/host"]


def test_what_ends_in_the_middle_of_an_optimiser_s_step_is_not_done_again() -> None:
    with pytest.raises(LonghaulError) as caught, applied_once("the optimiser's step"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert caught.value.exit_code == ExitCode.CUDA_OOM
    with pytest.raises(ValueError, match="other"), applied_once("the optimiser's step"):
        raise ValueError("other")
