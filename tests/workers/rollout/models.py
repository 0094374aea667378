"""A tiny model with random weights, a tokenizer of single letters, and what a direct forward pass says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from workers.rollout.engine import Request, Rollout

LETTERS = "\0$ABCDEFGHIJKLMNOPQRSTUVWXYZ."
"""Text of each token: 0 is padding, 1 the stop token."""
PROMPTS = [(3, 4, 5, 6, 7, 8, 9), (5,), (9, 8, 7), (5,), (3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3)]
REQUESTS = [Request(prompt, seed) for seed, prompt in enumerate(PROMPTS, start=11)]


def decode(ids: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in ids)


def tiny_model(key_heads: int = 2, **changes: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(1)
    fields: dict[str, Any] = {
        "vocab_size": len(LETTERS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": key_heads, "tie_word_embeddings": True, "eos_token_id": 1,
        "pad_token_id": 0, "bos_token_id": None, "initializer_range": 0.3, "max_position_embeddings": 512,
    }  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**(fields | changes))).eval()


def direct_log_probs(model: Any, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Of the completion's tokens, from one forward pass over the whole sequence. [T]"""
    ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids], device=model.device)
    with torch.inference_mode():
        log_probs = torch.log_softmax(model(ids).logits[0].float() / temperature, dim=-1)
    begin = len(rollout.prompt_ids)
    return log_probs[begin - 1 : -1].gather(1, ids[0, begin:, None])[:, 0].cpu()
