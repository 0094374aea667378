"""`adapter.targets` in the names of a model's own layers."""

from __future__ import annotations

import pytest

from profiles.description import FUSED, Architecture
from profiles.schema import Adapter
from profiles.targets import own_targets, refusal

USUAL = Adapter().targets
PHI3, GLM = Architecture(fused=frozenset(FUSED)), Architecture(fused=frozenset({"gate_up_proj"}))


@pytest.mark.parametrize(
    ("architecture", "targets", "own"),
    [
        pytest.param(Architecture(), USUAL, USUAL, id="all as they are"),
        pytest.param(PHI3, USUAL, ("o_proj", "down_proj", "qkv_proj", "gate_up_proj"), id="two fused"),
        pytest.param(GLM, USUAL, ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "gate_up_proj"), id="one fused"),
        pytest.param(PHI3, ("qkv_proj",), ("qkv_proj",), id="its own name"),
        pytest.param(PHI3, (*USUAL[:3], "qkv_proj"), ("qkv_proj",), id="both names"),
        pytest.param(PHI3, ("q_proj", "v_proj"), ("q_proj", "v_proj"), id="a part of a fused one: refused later"),
        pytest.param(Architecture(has_gate=False), USUAL, (*USUAL[:4], "up_proj", "down_proj"), id="no gate"),
        pytest.param(Architecture(has_gate=False), ("gate_proj",), ("gate_proj",), id="the gate alone: refused later"),
    ],
)
def test_targets_are_named_as_the_model_names_its_layers(
    architecture: Architecture, targets: tuple[str, ...], own: tuple[str, ...]
) -> None:
    assert own_targets(architecture, targets) == own


def test_a_part_of_a_fused_layer_is_refused_with_the_name_of_the_whole() -> None:
    what, next_command = refusal(("q_proj",), PHI3.linear_names)
    assert "k_proj, q_proj, v_proj together stand for qkv_proj" in what and "stand for gate_up_proj" not in what
    assert next_command == "set adapter.targets to some of down_proj, gate_up_proj, o_proj, qkv_proj"
