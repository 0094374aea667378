"""Shapes: parameters are counted from a config alone, and are those of the published models."""

from __future__ import annotations

import json
from typing import get_args, get_type_hints

import pytest

from profiles.schema import Model
from profiles.shapes import ARCHITECTURES, CLUSTER_ARCHITECTURES, PUBLISHED, published, shape_of

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("r1-qwen-1.5b", 1_777_088_000),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("gemma-3-1b", 999_885_952),
        ("smollm3-3b", 3_075_098_624),
    ],
)
def test_parameters_are_counted_as_the_published_models_have_them(name: str, parameters: int) -> None:
    assert shape_of(ARCHITECTURES[name]).parameters == parameters


def _sizes(**more: object) -> dict[str, object]:
    usual = {"vocab_size": 1000, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
             "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": False}  # fmt: skip
    return usual | more


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CLUSTER_ARCHITECTURES["olmo3-32b"], id="OLMo 3 32B"),
        pytest.param(CLUSTER_ARCHITECTURES["olmo3-7b"], id="OLMo 3 7B"),
        pytest.param(ARCHITECTURES["r1-qwen-1.5b"], id="R1 1.5B"),
        pytest.param(ARCHITECTURES["qwen2.5-3b"] | {"tie_word_embeddings": True}, id="Qwen2.5 3B"),
        pytest.param(_sizes(model_type="llama", head_dim=16), id="Llama"),
        pytest.param(_sizes(model_type="llama", attention_bias=True, mlp_bias=True), id="Llama with biases"),
        pytest.param(_sizes(model_type="mistral"), id="Mistral"),
        pytest.param(_sizes(model_type="qwen3", head_dim=32), id="Qwen3"),
        pytest.param(_sizes(model_type="qwen3", head_dim=32, attention_bias=True), id="Qwen3 with biases"),
        pytest.param(_sizes(model_type="gemma2", head_dim=16, tie_word_embeddings=True), id="Gemma 2"),
        pytest.param(_sizes(model_type="gemma3_text", head_dim=16, tie_word_embeddings=True), id="Gemma 3"),
        pytest.param(_sizes(model_type="granite"), id="Granite"),
        pytest.param(_sizes(model_type="olmo2", attention_bias=True), id="OLMo 2 with biases"),
        pytest.param(_sizes(model_type="phi3", pad_token_id=0, eos_token_id=0), id="Phi-3: fused layers"),
        pytest.param(_sizes(model_type="glm4", pad_token_id=0, head_dim=32), id="GLM-4: four norms, biases, fused"),
        pytest.param(_sizes(model_type="apertus"), id="Apertus: no gate, slopes"),
        pytest.param(_sizes(model_type="arcee", mlp_bias=True), id="Arcee: no gate"),
        pytest.param(_sizes(model_type="exaone4", layer_types=["full_attention"] * 3), id="EXAONE 4"),
        pytest.param(_sizes(model_type="smollm3", pad_token_id=0), id="SmolLM3"),
        pytest.param(_sizes(model_type="ministral3"), id="Ministral 3"),
        pytest.param(_sizes(model_type="seed_oss", attention_out_bias=True), id="Seed-OSS with its biases"),
        pytest.param(_sizes(model_type="ernie4_5", use_bias=True), id="ERNIE 4.5 with biases"),
        pytest.param(
            _sizes(
                model_type="gemma4_text",
                head_dim=16,
                global_head_dim=32,
                num_global_key_value_heads=1,
                attention_k_eq_v=True,
                hidden_size_per_layer_input=0,
                tie_word_embeddings=True,
            ),
            id="Gemma 4: heads of two widths, values that are keys",
        ),
    ],
)
def test_parameters_are_counted_as_transformers_makes_the_model(config: dict[str, object]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type = str(config["model_type"])
    with torch.device("meta"):
        made = AutoConfig.for_model(model_type, **{name: one for name, one in config.items() if name != "model_type"})
        model = AutoModelForCausalLM.from_config(made)
    shape = shape_of(config)
    assert shape.is_counted
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_of_a_family_without_a_record_the_count_says_that_it_is_a_guess() -> None:
    assert not shape_of(_sizes(model_type="mixtral")).is_counted


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
    [({}, True), ({"model_type": "qwen2", "use_sliding_window": False}, True), ({"model_type": "llama"}, True),
     ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3}, True),
     ({"model_type": "llama", "hidden_act": "relu"}, False), ({"model_type": "mixtral"}, False)],
)  # fmt: skip
def test_a_shape_knows_whether_the_native_engine_captures_its_steps(
    config: dict[str, object], is_captured: bool
) -> None:
    assert shape_of(ARCHITECTURES["qwen2.5-0.5b"] | config).is_captured == is_captured


def test_every_named_shape_can_be_drawn_at_random_and_every_published_name_has_a_shape() -> None:
    choices = get_args(get_args(get_type_hints(Model, include_extras=True)["random_init"])[0])
    assert set(choices) == {"off", *ARCHITECTURES}
    assert set(PUBLISHED.values()) <= {*ARCHITECTURES, *CLUSTER_ARCHITECTURES}


def test_a_folder_named_after_a_published_model_tells_its_shape() -> None:
    assert published("Qwen2.5-Coder-3B-Instruct") == shape_of(ARCHITECTURES["qwen2.5-3b"])
    assert published("mine") is None
