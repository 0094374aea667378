"""What the record of a family says of a config is what transformers' modules are made of."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest
from torch import nn

from profiles import capture
from profiles.architecture import supports
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
    assert found is not None
    assert not found.unknown or name in NOT_COMPUTED
    assert type(model).__name__ == found.model_class
    layers = model.model.layers
    linear = {
        path.rpartition(".")[2]: module for path, module in layers.named_modules() if isinstance(module, nn.Linear)
    }
    assert set(found.linear_names) == {name for name in linear if not name.startswith("per_layer")}
    assert found.biases == {path for path, module in linear.items() if module.bias is not None}
    attention = layers[0].self_attn
    assert bool(found.qk_norm) == hasattr(attention, "q_norm")
    if found.qk_norm:
        width = attention.head_dim * (config["num_attention_heads"] if found.qk_norm == "whole" else 1)
        assert attention.q_norm.weight.shape == (width,)
    norms = {path for path, module in layers[0].named_children() if "norm" in path and "per_layer" not in path}
    assert norms == set(astuple(found.norm.names)) - {""}
    scaled = getattr(model.model.embed_tokens, "scalar_embed_scale", None)
    assert found.embedding_is_scaled == (scaled is not None)
    assert scaled is None or found.embedding_scale == pytest.approx(scaled)
    assert found.layer_scale == hasattr(layers[0], "layer_scalar")
    eps = getattr(model.model.norm, "variance_epsilon", None) or model.model.norm.eps
    assert found.norm.eps == eps
    shape = shape_of(config)
    head_dim = shape.head_dim
    assert [layer.head_dim or head_dim for layer in found.layers] == [layer.self_attn.head_dim for layer in layers]
    if not any("per_layer" in name for name in linear):
        assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (found.attention_scale or head_dim**-0.5) == pytest.approx(attention.scaling)
    assert found.attention_cap == getattr(attention, "attn_logit_softcapping", None)
    assert found.logit_cap == config.get("final_logit_softcapping")
    assert found.activation == (config.get("hidden_activation") or config["hidden_act"])
    slide = [layer.self_attn for layer in layers if hasattr(layer.self_attn, "sliding_window")]
    windows = [one.sliding_window if getattr(one, "is_sliding", True) else None for one in slide]
    if windows:
        assert [layer.window for layer in found.layers] == windows
    assert len(found.layers) == len(layers)


NOT_COMPUTED = {
    "llama, partial rope": "rope_parameters", "llama, dynamic rope": "rope_parameters",
    "gemma4_text, embeddings of layers": "hidden_size_per_layer_input",
    "gemma4_text, shared caches": "hidden_size_per_layer_input",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NOT_COMPUTED))
def test_a_part_that_is_described_and_not_computed_is_refused_by_its_name(name: str) -> None:
    found = architecture_of(model_of(name).config.to_dict())
    assert found is not None and NOT_COMPUTED[name] in supports(found)


@pytest.mark.parametrize("name", KNOWN)
def test_kernels_take_nothing_that_the_plain_code_refuses(name: str) -> None:
    found = architecture_of(model_of(name).config.to_dict())
    assert found is not None
    for of_kernels in (capture.supports, fused_layers.supports):
        assert of_kernels(found) or not supports(found)


def test_a_family_without_a_record_is_computed_by_none_of_them() -> None:
    assert architecture_of({"model_type": "mamba"}) is None
    assert capture.supports(None) and fused_layers.supports(None)
