"""Which configs our own code is known to compute: one field at a time, as published and as transformers writes them."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.architecture import path_of, reason_against, refusal
from profiles.families import architecture_of, compared

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
_COMMON = {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "vocab_size": 1000,
           "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
           "num_hidden_layers": 12, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
           "transformers_version": "4.50.0"}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen3": {
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "max_window_layers": 28,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False},
    "Gemma 2": {
        "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
        "cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256, "rope_theta": 10000.0, "sliding_window": 4096, "attention_bias": False},
    "Gemma 3": {
        "model_type": "gemma3_text", "attn_logit_softcapping": None, "cache_implementation": "hybrid", "head_dim": 256,
        "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "attention_bias": False},
    "SmolLM3": {
        "model_type": "smollm3", "attention_bias": False, "max_window_layers": 28, "mlp_bias": False,
        "hidden_act": "silu", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 3, "pretraining_tp": 2,
        "layer_types": ["full_attention"] * 12, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "use_sliding_window": False},
    "Phi-4-mini": {
        "model_type": "phi3", "attention_bias": False, "auto_map": {"AutoConfig": "x"}, "embd_pdrop": 0.0,
        "full_attn_mod": 1, "hidden_act": "silu", "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
        "rope_theta": 10000.0, "sliding_window": 262144},
    "OLMo 3": {
        "model_type": "olmo3", "attention_bias": False, "hidden_act": "silu", "rope_theta": 500000,
        "rope_scaling": {"attention_factor": 1.2, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                         "original_max_position_embeddings": 8192, "rope_type": "yarn"},
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 3, "sliding_window": 4096},
    "GLM-4": {
        "model_type": "glm4", "attention_bias": True, "head_dim": 128, "hidden_act": "silu",
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "eos_token_id": [1, 2]},
    "EXAONE 4": {
        "model_type": "exaone4", "hidden_act": "silu", "head_dim": 128, "sliding_window": 4096,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 3, "sliding_window_pattern": "LLLG",
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 1000000},
    "Apertus": {
        "model_type": "apertus", "attention_bias": False, "hidden_act": "xielu", "hidden_dropout": 0.0,
        "mlp_bias": False, "post_norm": False, "qk_norm": True, "rope_theta": 12000000,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3", "type": "llama3"}},
    "Granite": {
        "model_type": "granite", "attention_bias": False, "attention_multiplier": 0.015625, "hidden_act": "silu",
        "embedding_multiplier": 12.0, "logits_scaling": 8.0, "mlp_bias": False, "residual_multiplier": 0.22,
        "rope_scaling": None, "rope_theta": 10000000.0},
    "Gemma 4, dense": {
        "model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block": False, "global_head_dim": 512,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0, "num_global_key_value_heads": 4, "num_kv_shared_layers": 0,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                               "rope_theta": 1000000.0}},
        "sliding_window": 1024, "use_bidirectional_attention": "vision", "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 262144},
}  # fmt: skip
"""Fields of config.json files as their makers published them, with small sizes."""
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


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_our_own_code_takes_what_was_published(name: str) -> None:
    assert reason_against(_COMMON | PUBLISHED[name]) == ""


def test_what_an_older_file_says_of_layers_is_what_transformers_makes_of_it() -> None:
    gemma = architecture_of(_COMMON | PUBLISHED["Gemma 3"])
    assert gemma is not None
    assert [layer.window for layer in gemma.layers] == [512] * 5 + [None] + [512] * 5 + [None]
    assert [layer.rope.theta for layer in gemma.layers[4:6] if layer.rope] == [10_000, 1_000_000]
    olmo = architecture_of(_COMMON | PUBLISHED["OLMo 3"])
    assert olmo is not None
    assert [layer.rope.kind for layer in olmo.layers[2:4] if layer.rope] == ["default", "yarn"]
    smol = architecture_of(_COMMON | {k: v for k, v in PUBLISHED["SmolLM3"].items() if k != "no_rope_layers"})
    assert smol is not None and [layer.rope is None for layer in smol.layers[:4]] == [False, False, False, True]


@pytest.mark.parametrize(
    ("config", "longest", "is_refused"),
    [
        (LLAMA, 10**6, False),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 4096}, 4096, False),
        ({"rope_scaling": LONGROPE, "original_max_position_embeddings": 4096}, 4097, True),
        ({"rope_parameters": {"full_attention": LONGROPE | {"original_max_position_embeddings": 64}}}, 65, True),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048}, 2049, True),
        ({"model_type": "a", "index_topk": 2048}, 2048, False),
        ({"model_type": "a", "index_topk": 2048}, 2049, True),
        ({"model_type": "a", "keep_window_size": 64}, 65, True),
    ],
)
def test_what_changes_beyond_a_length_is_refused_where_a_sequence_may_get_there(
    config: dict[str, Any], longest: int, is_refused: bool
) -> None:
    assert bool(refusal(config, longest)) == is_refused


def test_the_path_is_said_in_one_line() -> None:
    assert path_of(QWEN, "vllm") == "own code (qwen2): rollouts by vllm, training on packed rows"
    assert path_of({"model_type": "mamba"}, "vllm") == (
        f"plain transformers (the architecture mamba is not one of {', '.join(compared())}): rollouts by hf, training "
        "on rows of one prompt and one completion"
    )
