"""When an update needs an extra scoring pass, from the profile; test_one_pass.py checks the worker."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.footprint import demand_of
from profiles.load import load_profile
from profiles.passes import is_scored
from profiles.schema import Grpo, Model, Optimizer, Profile, Run, Sampling
from profiles.shapes import ARCHITECTURES, shape_of
from tests.profiles.variants import with_variants

MASK = Grpo(entropy_mask="percentile")
ROUNDED = {"model": Model(dtype="bfloat16")}
VLLM = {"sampling": Sampling(engine="vllm")}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        pytest.param({}, False, id="exact numbers"),
        pytest.param(ROUNDED, True, id="numbers that are rounded"),
        pytest.param(VLLM, True, id="numbers of another engine"),
        pytest.param({"sampling": Sampling(fallback=("continuous",))}, True, id="another engine may take over"),
        pytest.param({**ROUNDED, "optimizer": Optimizer(tis_cap=0)}, False, id="no correction"),
        pytest.param({"optimizer": Optimizer(tis_cap=2)}, True, id="a correction that was asked for"),
    ],
)
def test_self_play_scores_what_it_corrects(sections: dict[str, Any], expected: bool) -> None:
    assert is_scored(Profile(name="p", **sections)) == expected


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        pytest.param({}, False, id="one update"),
        pytest.param(VLLM, False, id="one update, another engine"),
        pytest.param({"grpo": MASK}, False, id="a mask, and entropies from the engine"),
        pytest.param({"grpo": MASK, **VLLM}, True, id="a mask, and an engine that tells none"),
        pytest.param(
            {"grpo": MASK, "sampling": Sampling(fallback=("vllm",))}, True, id="a mask, and one that may take over"
        ),
        pytest.param({"grpo": Grpo(kl_coef=0.1)}, True, id="a reference"),
        pytest.param(
            {"grpo": with_variants(Grpo, entropy_mask="percentile", low_entropy_kl=0.1)},
            True,
            id="a reference of sure tokens",
        ),
        pytest.param({"optimizer": Optimizer(updates_per_step=2)}, True, id="two updates"),
        pytest.param({"grpo": Grpo(inner_epochs=2)}, True, id="two epochs"),
        pytest.param({"grpo": Grpo(inner_epochs=2, old_source="detach")}, False, id="two epochs, no old log-probs"),
        pytest.param({"grpo": with_variants(Grpo, ratio_level="sequence")}, True, id="a ratio of rollouts"),
        pytest.param({"grpo": with_variants(Grpo, tis_mode="sequence_mask")}, True, id="weights of rollouts"),
    ],
)
def test_grpo_scores_where_the_update_cannot_tell_by_itself(sections: dict[str, Any], expected: bool) -> None:
    assert is_scored(Profile(name="p", run=Run(worker="grpo"), **({**ROUNDED} | sections))) == expected


@pytest.mark.parametrize(
    ("name", "shape", "phases"),
    [
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", {"load", "rollout", "train"}),
        ("azr-0.5b", "qwen2.5-0.5b", {"load", "rollout", "score", "train"}),
    ],
)
def test_a_plan_has_the_phases_that_a_step_has(name: str, shape: str, phases: set[str]) -> None:
    assert demand_of(load_profile(name).profile, shape_of(ARCHITECTURES[shape])).phases.keys() == phases
