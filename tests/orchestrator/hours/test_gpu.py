"""Seconds of a step on a GPU: every step that was measured is predicted within the error that is told."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from orchestrator.hours.cards import SPEEDS, CardSpeed, speed_of
from orchestrator.hours.gpu import MEASURED, WORST_ERROR, Row, step_of
from profiles.knobs import with_values
from profiles.load import load_profile
from profiles.schema import Profile
from profiles.shapes import ARCHITECTURES, shape_of
from tests import REPOSITORY

H200 = next(one for one in SPEEDS if one.name == "H200")
SHAPE = shape_of(ARCHITECTURES["r1-qwen-1.5b"])


def a_profile(**settings: object) -> Profile:
    return with_values(load_profile("grpo-1.5b-8gb").profile, dict(settings))


def whole(row: Row) -> float:
    profile = with_values(load_profile(row.profile).profile, dict(row.settings))
    speed = speed_of(f"NVIDIA {row.card}")
    assert speed is not None and speed.is_measured
    return step_of(profile, shape_of(ARCHITECTURES[row.architecture]), speed).total


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.card} {row.profile} {row.seconds}")
def test_a_measured_step_is_predicted_within_the_told_error(row: Row) -> None:
    assert abs(whole(row) / row.seconds - 1) <= WORST_ERROR + 0.005


def test_the_documented_error_of_each_row_is_the_one_that_it_has() -> None:
    text = (REPOSITORY / "docs/performance.md").read_text()
    told = re.findall(r"^\| (H\d00) \| `([\w.-]+)`.* \| ([\d.]+) \| ([\d.]+) \| ([+-]\d+) % \|$", text, re.M)
    assert [(card, profile, float(seconds)) for card, profile, seconds, _, _ in told] == [
        (row.card, row.profile, row.seconds) for row in MEASURED
    ]
    for row, (*_, predicted, error) in zip(MEASURED, told, strict=True):
        assert float(predicted) == pytest.approx(whole(row), rel=0.01)
        assert int(error) == round(100 * (whole(row) / row.seconds - 1))


@pytest.mark.parametrize(
    ("settings", "is_longer"),
    [
        ({"sampling.max_completion_tokens": 4096}, True),
        ({"grpo.groups_per_step": 8}, True),
        ({"sampling.max_rows": 4}, True),
        ({"grpo.inner_epochs": 2}, True),
        ({"grpo.groups_per_step": 1}, False),
    ],
)
def test_more_work_takes_longer(settings: dict[str, object], is_longer: bool) -> None:
    before, after = (step_of(a_profile(**one), SHAPE, H200).total for one in ({}, settings))
    assert (after > before) is is_longer


def test_half_the_speed_takes_longer_but_not_twice_as_long_since_launches_stay() -> None:
    slow = CardSpeed("half", H200.bandwidth / 2, H200.flops / 2)
    before, after = (step_of(a_profile(), SHAPE, card).total for card in (H200, slow))
    assert before < after < 2 * before


def test_a_sampler_on_another_gpu_and_the_update_take_as_long_as_the_longer_of_them() -> None:
    beside = step_of(a_profile(**{"run.overlap": 1, "run.sampler_device": "cuda:1"}), SHAPE, H200)
    on_one = step_of(a_profile(**{"run.overlap": 1}), SHAPE, H200)
    assert beside.total == max(beside.rollout, beside.score + beside.update)
    assert on_one.total == on_one.rollout + on_one.score + on_one.update > beside.total


def test_several_gpus_divide_a_step() -> None:
    one, two = (step_of(a_profile(**{"run.gpus": n, "grpo.groups_per_step": 16}), SHAPE, H200).total for n in (1, 2))
    assert 0.4 < two / one < 0.8


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Voodoo 2", None),
    ],
)
def test_a_card_is_found_by_the_driver_s_name(name: str, expected: str | None) -> None:
    found = speed_of(name)
    assert (found.name if found else None) == expected


def test_only_cards_on_which_steps_were_timed_count_as_measured() -> None:
    assert {one.name for one in SPEEDS if one.is_measured} == {row.card for row in MEASURED}
    assert all(math.isfinite(one.bandwidth * one.flops) and one == replace(one) for one in SPEEDS)
