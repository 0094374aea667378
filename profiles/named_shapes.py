"""Published models by name: what their config.json says, and tiny ones of the same families. (pure)"""

from __future__ import annotations

from typing import Any


def _config(family: str, vocabulary: int, context: int, *sizes: int, **more: Any) -> dict[str, Any]:
    """sizes: hidden, MLP, layers, heads, key heads."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    named = dict(zip(names, sizes, strict=True))
    return {"model_type": family, "vocab_size": vocabulary, **named, "max_position_embeddings": context, **more}


def _llama3(factor: float, first: int) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": first,
    }


_ROPE_1M = {"rope_type": "default", "rope_theta": 1_000_000.0}
_QWEN3: dict[str, Any] = {"head_dim": 128, "rope_parameters": _ROPE_1M}
_LLAMA: dict[str, Any] = {"rms_norm_eps": 1e-5, "rope_parameters": _llama3(32.0, 8192)}
_GEMMA3: dict[str, Any] = {
    "query_pre_attn_scalar": 256,
    "rope_parameters": {
        "full_attention": _ROPE_1M,
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
_QWEN3_5: dict[str, Any] = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
}
"""Three of four layers are gated delta nets."""
_SMOLLM3: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000.0}}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2-tiny": _config("qwen2", 272, 32_768, 64, 128, 2, 2, 1),
    "qwen2.5-0.5b": _config("qwen2", 151_936, 32_768, 896, 4864, 24, 14, 2),
    "qwen2.5-1.5b": _config("qwen2", 151_936, 32_768, 1536, 8960, 28, 12, 2),
    "r1-qwen-1.5b": _config("qwen2", 151_936, 131_072, 1536, 8960, 28, 12, 2, tie_word_embeddings=False),
    "qwen2.5-3b": _config("qwen2", 151_936, 32_768, 2048, 11_008, 36, 16, 2),
    "qwen2.5-7b": _config("qwen2", 152_064, 32_768, 3584, 18_944, 28, 28, 4, tie_word_embeddings=False),
    "qwen3-tiny": _config("qwen3", 272, 32_768, 64, 128, 2, 2, 1, **_QWEN3 | {"head_dim": 64}),
    "qwen3-0.6b": _config("qwen3", 151_936, 40_960, 1024, 3072, 28, 16, 8, **_QWEN3),
    "qwen3-1.7b": _config("qwen3", 151_936, 40_960, 2048, 6144, 28, 16, 8, **_QWEN3),
    "qwen3-4b": _config("qwen3", 151_936, 40_960, 2560, 9728, 36, 32, 8, **_QWEN3),
    "qwen3-8b": _config("qwen3", 151_936, 40_960, 4096, 12_288, 36, 32, 8, **_QWEN3, tie_word_embeddings=False),
    "llama-tiny": _config("llama", 272, 131_072, 64, 128, 2, 2, 1, head_dim=32, **_LLAMA),
    "llama-3.2-1b": _config("llama", 128_256, 131_072, 2048, 8192, 16, 32, 8, head_dim=64, **_LLAMA),
    "llama-3.2-3b": _config("llama", 128_256, 131_072, 3072, 8192, 28, 24, 8, head_dim=128, **_LLAMA),
    "gemma3-tiny": _config("gemma3_text", 272, 32_768, 64, 128, 6, 2, 1, head_dim=32, sliding_window=16, **_GEMMA3),
    "gemma-3-1b": _config(
        "gemma3_text", 262_144, 32_768, 1152, 6912, 26, 4, 1, head_dim=256, sliding_window=512, **_GEMMA3
    ),
    "smollm3-3b": _config("smollm3", 128_256, 65_536, 2048, 11_008, 36, 16, 4, **_SMOLLM3),
    "qwen3.5-0.8b": _config("qwen3_5_text", 248_320, 262_144, 1024, 3584, 24, 8, 2, head_dim=256, **_QWEN3_5),
}
"""Published config.json values, the same for Qwen2.5 and Qwen2.5-Coder. Embedding and head are tied by default."""

_OLMO3: dict[str, Any] = {"sliding_window": 4096, "tie_word_embeddings": False}
CLUSTER_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "olmo3-7b": _config("olmo3", 100_278, 65_536, 4096, 11_008, 32, 32, 32, **_OLMO3),
    "olmo3-32b": _config("olmo3", 100_278, 65_536, 5120, 27_648, 64, 40, 8, **_OLMO3),
}
"""The same of models that are trained on several hosts; none is drawn at random."""

PUBLISHED = {
    "qwen2.5-0.5b": "qwen2.5-0.5b",
    "qwen2.5-coder-0.5b": "qwen2.5-0.5b",
    "qwen2.5-1.5b": "qwen2.5-1.5b",
    "qwen2.5-coder-1.5b": "qwen2.5-1.5b",
    "qwen2.5-math-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-distill-qwen-1.5b": "r1-qwen-1.5b",
    "qwen2.5-3b": "qwen2.5-3b",
    "qwen2.5-coder-3b": "qwen2.5-3b",
    "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-coder-7b": "qwen2.5-7b",
    "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-0.6b-base": "qwen3-0.6b",
    "qwen3-1.7b": "qwen3-1.7b",
    "qwen3-1.7b-base": "qwen3-1.7b",
    "qwen3-4b": "qwen3-4b",
    "qwen3-4b-base": "qwen3-4b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-8b-base": "qwen3-8b",
    "llama-3.2-1b": "llama-3.2-1b",
    "llama-3.2-3b": "llama-3.2-3b",
    "gemma-3-1b-pt": "gemma-3-1b",
    "gemma-3-1b-it": "gemma-3-1b",
    "smollm3-3b": "smollm3-3b",
    "smollm3-3b-base": "smollm3-3b",
    "qwen3.5-0.8b": "qwen3.5-0.8b",
    "qwen3.5-0.8b-base": "qwen3.5-0.8b",
    "olmo-3-1025-7b": "olmo3-7b",
    "olmo-3-1125-32b": "olmo3-32b",
}
"""Published models by name, in lower case and without `-instruct`, to plan for a folder that does not exist yet."""
