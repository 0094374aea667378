"""Shapes: parameters are counted from a config alone, and are those of the published models."""

from __future__ import annotations

import json
from typing import get_args, get_type_hints

import pytest

from profiles.schema import Model
from profiles.shapes import ARCHITECTURES, PUBLISHED, published, shape_of

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("r1-qwen-1.5b", 1_777_088_000),
        ("qwen2.5-3b", 3_085_938_688),
    ],
)
def test_parameters_are_counted_as_the_published_models_have_them(name: str, parameters: int) -> None:
    assert shape_of(ARCHITECTURES[name]).parameters == parameters


def test_row_27_the_parts_of_the_1_5b_shape_and_of_its_adapters() -> None:
    shape = shape_of(ARCHITECTURES["r1-qwen-1.5b"])
    assert shape.linear_parameters == 1_310_195_712
    assert shape.embedding_parameters == 2 * 233_373_696
    assert shape.small_parameters == 57_344 + 87_552
    assert shape.adapter_parameters(16, QKVO) == 4_358_144
    assert shape.adapter_parameters(16, tuple(shape.linear)) == 18_464_768


def test_a_config_may_leave_out_what_has_a_usual_value() -> None:
    config = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "head_dim": None,
    }  # fmt: skip
    shape = shape_of(json.loads(json.dumps(config)))
    assert (shape.head_dim, shape.num_key_value_heads, shape.tie_word_embeddings) == (16, 4, True)
    assert shape_of(config | {"head_dim": 32}).query_width == 128


@pytest.mark.parametrize(
    ("config", "is_captured"),
    [({}, True), ({"model_type": "qwen2", "use_sliding_window": False}, True), ({"model_type": "llama"}, False),
     ({"model_type": "qwen2", "use_sliding_window": True}, False)],
)  # fmt: skip
def test_a_shape_knows_whether_the_native_engine_captures_its_steps(
    config: dict[str, object], is_captured: bool
) -> None:
    assert shape_of(ARCHITECTURES["qwen2.5-0.5b"] | config).is_captured == is_captured


def test_every_named_shape_can_be_drawn_at_random_and_every_published_name_has_a_shape() -> None:
    choices = get_args(get_args(get_type_hints(Model, include_extras=True)["random_init"])[0])
    assert set(choices) == {"off", *ARCHITECTURES}
    assert set(PUBLISHED.values()) <= set(ARCHITECTURES)


def test_a_folder_named_after_a_published_model_tells_its_shape() -> None:
    assert published("Qwen2.5-Coder-3B-Instruct") == shape_of(ARCHITECTURES["qwen2.5-3b"])
    assert published("mine") is None
