"""What a config.json says a model computes, and whether our own code is known to compute exactly that. (pure)

Our own code is the engines `native`, `continuous` and `vllm`, the fused and written-out layers, and training on packed
rows. It takes a model only where the architecture and every field of its config are in the tables below. Everything
else runs through plain transformers: the engine `hf`, and training rows of one prompt and one completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PLAIN_ENGINE = "hf"

SIZES = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
})  # fmt: skip
"""Fields that our code reads, or whose modules it calls, at any value."""
HARMLESS = frozenset({
    # Names and versions.
    "model_type", "architectures", "auto_map", "transformers_version", "transformers.js_config", "_name_or_path",
    "name_or_path", "model_name", "model_version", "unsloth_version", "unsloth_fixed", "task_specific_params",
    "tokenizer_class", "prefix", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
    # Tokens, and how text is generated.
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "max_length",
    "min_length", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "use_cache", "is_decoder",
    "is_encoder_decoder", "chunk_size_feed_forward",
    # What is returned beside the logits, and with what precision and kernels it is computed.
    "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate", "output_scores", "dtype",
    "torch_dtype", "torchscript", "_attn_implementation", "attn_implementation", "_experts_implementation",
    "pretraining_tp", "tp_plan", "base_model_tp_plan",
    # Training alone: a policy is always in evaluation mode.
    "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "use_bfloat16",
})  # fmt: skip
"""Fields that change no logit."""

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds whose table depends on the position alone. `dynamic` and `longrope` depend on the length of the sequence."""
ROPE_FIELDS = frozenset({
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "attention_factor",
    "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
})  # fmt: skip


def _any(value: Any) -> bool:
    return True


def _off(value: Any) -> bool:
    return value is None or value is False


def _silu(value: Any) -> bool:
    return bool(value == "silu")


def _rope(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, Mapping) or value.get("partial_rotary_factor", 1.0) != 1.0:
        return False
    kind = value.get("rope_type", value.get("type", "default"))
    return isinstance(kind, str) and kind in ROPE_TYPES and set(value) <= ROPE_FIELDS | {"partial_rotary_factor"}


def _bitsandbytes(value: Any) -> bool:
    """Our own NF4: loading writes it into the config. Other quantisations compute with other weights."""
    return value is None or (isinstance(value, Mapping) and value.get("quant_method") == "bitsandbytes")


Check = Callable[[Any], bool]

COMMON: dict[str, Check] = {
    "hidden_act": _silu, "rope_theta": _any, "rope_scaling": _rope, "rope_parameters": _rope,
    "partial_rotary_factor": lambda value: value in (None, 1.0), "quantization_config": _bitsandbytes,
}  # fmt: skip
WINDOWS = frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})
"""Read together, by `_window_of`."""
FAMILIES: dict[str, dict[str, Check]] = {
    "llama": {"attention_bias": _any, "mlp_bias": _any},
    "mistral": {},
    "qwen2": {"use_mrope": _off},
}
"""Architecture -> fields of its own at which our code computes it; biases are in the modules that it calls."""
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}

LEFT_PADDED = frozenset({
    *FAMILIES, "apertus", "bamba", "bloom", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "exaone4", "falcon_h1",
    "falcon_mamba", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss",
    "granite", "granitemoe", "granitemoehybrid", "helium", "hunyuan_v1_dense", "jamba", "lfm2", "mamba", "mamba2",
    "ministral", "ministral3", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3",
    "qwen2_moe", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2",
})  # fmt: skip
"""Architectures whose `generate` gives a prompt with padding on its left what it gives the prompt alone: measured for
each. Of any other, prompts of unlike lengths never share a batch."""


def reason_against(config: Mapping[str, Any], longest: int = 0) -> str:
    """Why our own code is not known to compute this model; empty: it is. (pure)

    config: a config.json, or `to_dict()` of what transformers reads from it. longest: most tokens of a sequence in this
    run, 0 where that is not known; a window of so many tokens or more cuts nothing off.
    """
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        return f"the architecture {family or '(none named)'} is not one of {', '.join(sorted(FAMILIES))}"
    checks = COMMON | FAMILIES[family]
    for name, value in sorted(config.items()):
        if name in SIZES or name in HARMLESS or name in WINDOWS:
            continue
        if not checks.get(name, _off)(value):
            return f"{family} with {name} = {_short(value)}"
    if (window := _window_of(family, config)) is not None and not 0 < longest <= window:
        return f"{family} with a sliding window of {window} tokens"
    return ""


def refusal(config: Mapping[str, Any], longest: int) -> str:
    """Why nothing here can sample sequences of `longest` tokens from this model; empty: something can. (pure)

    Such a rope turns all positions otherwise once a sequence has outgrown its first context. A cache keeps the keys as
    they were turned before, so what is sampled across that border is not what a pass over the whole sequence says.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping) or (kind := rope.get("rope_type", rope.get("type"))) not in (
        "dynamic",
        "longrope",
    ):
        return ""
    first = (
        rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings") or 0
    )  # fmt: skip
    if longest <= int(first):
        return ""
    return f"its rotary embedding ({kind}) changes beyond {first} tokens, and a sequence may have {longest}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _window_of(family: str, config: Mapping[str, Any]) -> int | None:
    """Most tokens that some layer sees; None: every layer sees all. What is absent has transformers' default."""
    if family == "qwen2" and not config.get("use_sliding_window", False):
        return None
    if family == "llama" and not config.get("layer_types"):
        return None
    kinds = config.get("layer_types")
    if kinds and set(kinds) <= {"full_attention"}:
        return None
    window = config.get("sliding_window", 4096)
    return None if window is None else int(window)


def path_of(config: Mapping[str, Any], engine: str, longest: int = 0) -> str:
    """One line: what draws rollouts of this model, and how it is trained. (pure)"""
    if reason := reason_against(config, longest):
        rows = "training on rows of one prompt and one completion"
        return f"plain transformers ({reason}): rollouts by {PLAIN_ENGINE}, {rows}"
    return f"own code ({config.get('model_type')}): rollouts by {engine}, training on packed rows"
