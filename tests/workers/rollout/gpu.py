"""What the tests of vLLM share: a small bfloat16 model on the GPU, and how far log_probs are off."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from profiles.schema import Vllm
from tests.workers.rollout.models import direct_log_probs
from workers.models import random_init
from workers.models.load import Tokenizer
from workers.rollout.engine import Request, Rollout, Sampling

NEEDS_VLLM = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.timeout(300),
]
KNOBS = Vllm(gpu_memory_utilization=0.1, max_num_seqs=64)
HOW = Sampling(max_new_tokens=48)
REQUESTS = [Request(tuple(range(5, 5 + length)), seed) for seed, length in enumerate((3, 40, 17, 17, 1) * 6)]


def make_model() -> Any:
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=272, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=256, pad_token_id=256, bos_token_id=None,
        initializer_range=0.1, max_position_embeddings=1024,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to("cuda", torch.bfloat16).eval()


def make_tokenizer(folder: Path) -> Tokenizer:
    random_init.byte_tokenizer().save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def apart(model: Any, rollouts: list[Rollout], temperature: float = 1.0) -> tuple[float, float]:
    """Mean and largest difference of the log_probs to a direct forward pass, nats."""
    found = torch.cat([
        (torch.tensor(one.log_probs) - direct_log_probs(model, one, temperature)).abs() for one in rollouts
    ])  # fmt: skip
    return float(found.mean()), float(found.max())


def scramble(parameters: Iterator[Any], scale: float) -> None:
    generator = torch.Generator("cuda").manual_seed(7)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator, device="cuda").to(parameter) * scale)
