"""Tiny random checkpoints of many architectures. Weights of norms are drawn away from 1 and biases away from 0, and
config scales are set away from their defaults: code that forgets one of them gives other numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from profiles.architecture import reason_against, refusal
from profiles.families import LEFT_PADDED
from workers.rollout.engine import Rollout
from workers.rollout.probe import single_log_probs

VOCABULARY = 272
"""As `random_init.byte_tokenizer` has, rounded up."""
WINDOW = 8
"""Shorter than the prompts that are tested."""

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": 256, "pad_token_id": 256, "tie_word_embeddings": False,
}  # fmt: skip
_MOE: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "output_router_logits": False,
}  # fmt: skip
_MIXED = ["sliding_attention", "full_attention"] * 2

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, head of 16, one key head, biases, tied": (
        "llama", {"head_dim": 16, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
                  "tie_word_embeddings": True}),
    "llama 3 rope": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    "llama, linear rope": ("llama", {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama, dynamic rope": ("llama", {"max_position_embeddings": 16, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama, partial rope": ("llama", {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "llama, gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, one key head, biases, tied, window": ("qwen3", {
        "head_dim": 24, "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True,
        "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, **_MOE}),
    "qwen2_moe": ("qwen2_moe", {**_MOE, "shared_expert_intermediate_size": 24}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": WINDOW}),
    "ministral": ("ministral", {"sliding_window": WINDOW, "layer_types": _MIXED, "head_dim": 8}),
    "ministral3": ("ministral3", {"head_dim": 8}),
    "ministral3, window, beyond the original context": ("ministral3", {
        "head_dim": 16, "sliding_window": WINDOW, "num_key_value_heads": 1, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 6,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}}),
    "mixtral": ("mixtral", {"sliding_window": WINDOW, **_MOE}),
    "granite": ("granite", {
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}),
    "granite, one key head, biases, tied": ("granite", {
        "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
        "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "granitemoe": ("granitemoe", {
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
        **_MOE}),
    "granitemoehybrid": ("granitemoehybrid", {
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
        "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16,
        "mamba_expand": 2, "mamba_chunk_size": 16, "shared_intermediate_size": 24, **_MOE}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": False}),
    "smollm3, biases, window": ("smollm3", {
        "no_rope_layers": [1, 0, 1, 1], "use_sliding_window": True, "sliding_window": WINDOW, "attention_bias": True,
        "mlp_bias": True, "tie_word_embeddings": True}),
    "olmo": ("olmo", {"clip_qkv": 1.0}),
    "olmo2": ("olmo2", {}),
    "olmo2, one key head, biases": ("olmo2", {"num_key_value_heads": 1, "attention_bias": True}),
    "olmo3": ("olmo3", {"sliding_window": WINDOW, "layer_types": _MIXED}),
    "olmo3, two ropes": ("olmo3", {
        "sliding_window": WINDOW, "layer_types": _MIXED, "tie_word_embeddings": True, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "attention_factor": 1.2,
                               "original_max_position_embeddings": 16}}}),
    "olmoe": ("olmoe", _MOE),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi3, partial": ("phi3", {"sliding_window": None, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "phi3, longrope": ("phi3", {
        "sliding_window": None, "num_key_value_heads": 1, "tie_word_embeddings": True,
        "max_position_embeddings": 4096, "original_max_position_embeddings": 64, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.5], "long_factor": [4.0, 9.0]}}),
    "phi3, longrope, beyond the original context": ("phi3", {
        "sliding_window": None, "max_position_embeddings": 4096, "original_max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}}),
    "gemma, one key head, biases": ("gemma", {
        "head_dim": 24, "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("gemma", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": ("gemma2", {
        "head_dim": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 24, "tie_word_embeddings": True}),
    "gemma3_text": ("gemma3_text", {
        "head_dim": 16, "sliding_window": WINDOW, "layer_types": _MIXED, "query_pre_attn_scalar": 24,
        "tie_word_embeddings": True}),
    "gemma2, one key head, biases, no caps": ("gemma2", {
        "head_dim": 8, "sliding_window": WINDOW, "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "query_pre_attn_scalar": 24, "num_key_value_heads": 1, "attention_bias": True}),
    "gemma3_text, two ropes, cap": ("gemma3_text", {
        "head_dim": 24, "sliding_window": WINDOW, "layer_types": _MIXED, "num_key_value_heads": 1,
        "final_logit_softcapping": 3.0, "attention_bias": True, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}}}),
    "gemma4_text": ("gemma4_text", {
        "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0, "sliding_window": WINDOW, "layer_types": _MIXED,
        "final_logit_softcapping": 3.0, "tie_word_embeddings": True}),
    "gemma4_text, embeddings of layers": ("gemma4_text", {
        "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 272,
        "sliding_window": WINDOW, "layer_types": _MIXED}),
    "gemma4_text, shared caches": ("gemma4_text", {
        "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 272,
        "num_kv_shared_layers": 2, "sliding_window": WINDOW, "layer_types": _MIXED}),
    "qwen3_5_text": ("qwen3_5_text", {
        "head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}),
    "qwen3_next": ("qwen3_next", {
        "head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "shared_expert_intermediate_size": 24, **_MOE}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3,
                      "block_auto_adjust_ff_dim": False}),
    "glm": ("glm", {"head_dim": 8, "partial_rotary_factor": 0.5}),
    "glm4": ("glm4", {"head_dim": 8, "partial_rotary_factor": 0.5}),
    "glm4, whole heads rotated, one key head": ("glm4", {
        "head_dim": 16, "partial_rotary_factor": 1.0, "num_key_value_heads": 1, "attention_bias": False}),
    "glm4_moe": ("glm4_moe", {"head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
                              "use_qk_norm": True, **_MOE}),
    "exaone4": ("exaone4", {"sliding_window": WINDOW, "layer_types": _MIXED, "sliding_window_pattern": 2}),
    "exaone4, no window, one key head": ("exaone4", {
        "sliding_window": None, "layer_types": ["full_attention"] * 4, "num_key_value_heads": 1,
        "tie_word_embeddings": True}),
    "apertus": ("apertus", {}),
    "apertus, llama 3 rope, biases": ("apertus", {
        "attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
    "arcee": ("arcee", {"mlp_bias": True}),
    "cohere": ("cohere", {"logit_scale": 0.5, "use_qk_norm": True}),
    "cohere2": ("cohere2", {"logit_scale": 0.5, "sliding_window": WINDOW, "layer_types": _MIXED}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}),
    "seed_oss": ("seed_oss", {"head_dim": 8}),
    "nemotron": ("nemotron", {"partial_rotary_factor": 0.5}),
    "falcon_h1": ("falcon_h1", {
        "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 16,
        "mamba_n_groups": 1, "head_dim": 8, "lm_head_multiplier": 0.5, "embedding_multiplier": 2.0,
        "attention_out_multiplier": 0.7, "ssm_out_multiplier": 0.6}),
    "gpt_oss": ("gpt_oss", {"head_dim": 8, "sliding_window": WINDOW, "layer_types": _MIXED, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0}, **_MOE}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096}),
    "gpt_neox": ("gpt_neox", {}),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "mamba": ("mamba", {"state_size": 8, "expand": 2}),
    "mamba2": ("mamba2", {"state_size": 16, "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1,
                          "chunk_size": 16}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8, "expand": 2}),
    "recurrent_gemma": ("recurrent_gemma", {"attention_window_size": WINDOW, "lru_width": 32}),
    "bamba": ("bamba", {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 16,
                        "attn_layer_indices": [1, 3]}),
    "nemotron_h": ("nemotron_h", {
        "layers_block_type": ["mamba", "attention", "mamba", "mlp"], "mamba_num_heads": 8, "mamba_head_dim": 8,
        "ssm_state_size": 16, "n_groups": 1, "chunk_size": 16, "head_dim": 8}),
    "jamba": ("jamba", {"mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
                        "expert_layer_offset": 1, "use_mamba_kernels": False, **_MOE}),
    "deepseek_v3": ("deepseek_v3", {
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
        "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "num_key_value_heads": 4, **_MOE}),
    "ernie4_5": ("ernie4_5", {"head_dim": 8, "use_bias": True}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 8}),
    "helium": ("helium", {"head_dim": 8}),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4}),
}  # fmt: skip
"""Name -> model type and what differs from `_SIZES`."""


def config_of(name: str) -> Any:
    from transformers import CONFIG_MAPPING

    kind, changes = FAMILIES[name]
    return CONFIG_MAPPING[kind](**{**_SIZES, **changes})


def model_of(name: str, seed: int = 0) -> Any:
    """In float32, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(config_of(name), dtype=torch.float32)
        if getattr(model.config, "attn_logit_softcapping", None):
            model.set_attn_implementation("eager")  # older transformers choose a kernel that drops it
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms, biases, time steps
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def exact(name: str) -> Any:
    """The family in float64, by code that computes in it."""
    model = model_of(name).double()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model


def bounds_of(name: str, rollouts: Sequence[Rollout]) -> list[torch.Tensor]:
    """How far float32 may move each log-prob, [T] for each rollout.

    A token's log-prob moves by more than others where a norm divides by something small. So models in float64 tell: of
    each, all weights are off by float32's unit roundoff. Engines and trainer are off by up to 2.5 times that and 2e-6.
    """
    truth = exact(name)
    found = [torch.zeros(len(one.completion_ids), dtype=torch.float64) for one in rollouts]
    for seed in range(3):
        moved, random = exact(name), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.mul_(1 + 2**-24 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
        for most, one in zip(found, rollouts, strict=True):
            off = (single_log_probs(moved, one, 1.0) - single_log_probs(truth, one, 1.0)).abs()
            most.copy_(torch.maximum(most, off))
    return [8 * (most + 2e-6) for most in found]


def write(name: str, directory: Path) -> None:
    """The family as a model directory with a tokenizer of single bytes."""
    from transformers.utils.logging import disable_progress_bar

    from workers.models.random_init import CHAT_TEMPLATE, EOS, byte_tokenizer

    disable_progress_bar()  # type: ignore[no-untyped-call]
    model_of(name).save_pretrained(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": EOS,
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


BEGIN, END = "<!-- families: python -m tests.workers.families -->\n", "<!-- /families -->\n"


def table() -> str:
    """What each family gets, in Markdown: the part of docs/models.md between the marks."""
    lines = [
        "| family, and what its config has | rollouts | trained as | why not our own code |",
        "| --- | --- | --- | --- |",
    ]
    for name in sorted(FAMILIES):
        config = config_of(name).to_dict()
        if refusal(config, 64):
            lines.append(f"| {name} | refused | refused | {refusal(config, 64)} |")
            continue
        reason = reason_against(config)
        engine = "any engine" if not reason else "`hf`" if FAMILIES[name][0] in LEFT_PADDED else "`hf`, equal lengths"
        reason = "architecture" if reason.startswith("the architecture") else reason
        lines.append(f"| {name} | {engine} | {'rows of one' if reason else 'packed rows'} | {reason} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """docs/models.md with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path("docs/models.md")
    path.write_text(with_table(path.read_text()))
