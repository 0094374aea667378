"""What the record of a family says of a config is what transformers' modules are made of."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from profiles import capture
from profiles.architecture import supports
from profiles.description import QKV
from profiles.families import FAMILIES as RECORDS
from profiles.families import architecture_of
from profiles.shapes import shape_of
from tests.workers.families import FAMILIES, model_of
from workers.models import fused_layers

KNOWN = sorted(name for name, (kind, _) in FAMILIES.items() if kind in RECORDS)


def test_every_record_is_tried() -> None:
    assert {FAMILIES[name][0] for name in KNOWN} == set(RECORDS)


@pytest.mark.parametrize("name", KNOWN)
def test_a_description_is_what_the_modules_have(name: str) -> None:
    model: Any = model_of(name)
    config = model.config.to_dict()
    found = architecture_of(config)
    assert found is not None and found.unknown == ()
    assert type(model).__name__ == found.model_class
    layers = model.model.layers
    linear = {
        path.rpartition(".")[2]: module for path, module in layers.named_modules() if isinstance(module, nn.Linear)
    }
    assert found.biases == {path for path, module in linear.items() if module.bias is not None}
    attention = layers[0].self_attn
    assert found.qk_norm == hasattr(attention, "q_norm")
    assert found.norm.after == hasattr(layers[0], "post_feedforward_layernorm")
    eps = getattr(model.model.norm, "variance_epsilon", None) or model.model.norm.eps
    assert found.norm.eps == eps
    head_dim = shape_of(config).head_dim
    assert (found.attention_scale or head_dim**-0.5) == pytest.approx(attention.scaling)
    assert found.attention_cap == getattr(attention, "attn_logit_softcapping", None)
    assert found.activation == (config.get("hidden_activation") or config["hidden_act"])
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in layers]
    if any(hasattr(layer.self_attn, "sliding_window") for layer in layers):
        assert [layer.window for layer in found.layers] == windows
    assert len(found.layers) == len(layers)


NOT_COMPUTED = {
    "qwen3": "qk_norm", "granite": "attention_multiplier", "gemma": "embedding_scale",
    "gemma2": "attn_logit_softcapping", "gemma3_text": "embedding_scale", "llama, gelu": "hidden_act",
    "llama, partial rope": "rope_parameters", "llama, dynamic rope": "rope_parameters",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NOT_COMPUTED))
def test_a_part_that_is_described_and_not_computed_is_refused_by_its_name(name: str) -> None:
    found = architecture_of(model_of(name).config.to_dict())
    assert found is not None and NOT_COMPUTED[name] in supports(found)


@pytest.mark.parametrize("name", KNOWN)
def test_captured_steps_and_fused_layers_take_what_they_know_and_nothing_else(name: str) -> None:
    found = architecture_of(model_of(name).config.to_dict())
    assert found is not None
    is_known = found.is_compared and not supports(found) and found.biases == QKV
    assert bool(capture.supports(found)) == bool(fused_layers.supports(found)) != is_known


def test_a_family_without_a_record_is_computed_by_none_of_them() -> None:
    assert architecture_of({"model_type": "mamba"}) is None
    assert capture.supports(None) and fused_layers.supports(None)
