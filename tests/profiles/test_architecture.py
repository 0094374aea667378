"""Which configs our own code is known to compute: one field at a time, as published and as transformers writes them."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.architecture import path_of, reason_against, refusal
from profiles.families import compared

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02, "intermediate_size": 8960,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 12,
    "num_hidden_layers": 28, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.43.1",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
"""Qwen2.5-1.5B-Instruct's, as published."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
"""Llama-3.2-1B-Instruct's, as published."""
MISTRAL = {name: QWEN[name] for name in ("hidden_act", "hidden_size", "vocab_size")} | {"model_type": "mistral"}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(QWEN, "", id="Qwen2.5 as published"),
        pytest.param(LLAMA, "", id="Llama 3.2 as published"),
        pytest.param(QWEN | {"quantization_config": {"quant_method": "bitsandbytes"}}, "", id="our own NF4"),
        pytest.param(QWEN | {"quantization_config": {"quant_method": "gptq"}}, "quantization_config", id="GPTQ"),
        pytest.param(QWEN | {"hidden_act": "gelu"}, "hidden_act = gelu", id="another activation"),
        pytest.param(QWEN | {"use_mrope": False}, "", id="a feature that is off"),
        pytest.param(QWEN | {"use_mrope": True}, "use_mrope", id="and one that is on"),
        pytest.param(QWEN | {"of_next_year": 0.5}, "of_next_year = 0.5", id="a field that nobody knows"),
        pytest.param(QWEN | {"of_next_year": 0}, "of_next_year = 0", id="zero may mean something, too"),
        pytest.param(QWEN | {"of_next_year": None}, "", id="null does not"),
        pytest.param(MISTRAL, "", id="a Mistral that names no window"),
        pytest.param(QWEN | {"use_sliding_window": True, "sliding_window": 100}, "", id="a window"),
        pytest.param(LLAMA | {"layer_types": ["sliding_attention"] * 16}, "layer_types", id="one that nobody heeds"),
        pytest.param(QWEN | {"layer_types": ["linear_attention"] * 28}, "layer_types", id="a layer of another kind"),
        pytest.param(LLAMA | {"rope_scaling": LONGROPE}, "", id="longrope"),
        pytest.param(LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling", id="dynamic"),
        pytest.param(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "", id="the older name of a kind"),
        pytest.param(LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor", id="half of a head turned"),
        pytest.param(
            LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters",
            id="by layer",
        ),
        pytest.param(QWEN | {"model_type": "mamba"}, "the architecture mamba", id="another architecture"),
        pytest.param({}, "(none named)", id="no architecture"),
    ],
)
def test_what_our_own_code_is_known_to_compute(config: dict[str, Any], reason: str) -> None:
    found = reason_against(config)
    assert reason in found and bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("config", "longest", "is_refused"),
    [
        (LLAMA, 10**6, False),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 4096}, 4096, False),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 4096}, 4097, True),
        ({"rope_parameters": {"full_attention": LONGROPE | {"original_max_position_embeddings": 64}}}, 65, True),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048}, 2049, True),
    ],
)
def test_a_rope_that_changes_on_the_way_is_refused_where_a_sequence_may_get_there(
    config: dict[str, Any], longest: int, is_refused: bool
) -> None:
    assert bool(refusal(config, longest)) == is_refused


def test_the_path_is_said_in_one_line() -> None:
    assert path_of(QWEN, "vllm") == "own code (qwen2): rollouts by vllm, training on packed rows"
    assert path_of({"model_type": "mamba"}, "vllm") == (
        f"plain transformers (the architecture mamba is not one of {', '.join(compared())}): rollouts by hf, training "
        "on rows of one prompt and one completion"
    )
