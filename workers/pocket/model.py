"""Builds pocket models (a small Qwen2 or Qwen3) and saves them as folders that `from_pretrained` can read."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from workers.pocket.tokenizer import PROGRAMS
from workers.pocket.vocabulary import EOS_ID, PAD_ID, Vocabulary

WEIGHTS = Path(__file__).parent / "weights"
"""The shipped model of the little language."""
WORD_PROBLEMS_WEIGHTS = Path(__file__).parent / "word_problems" / "weights"
"""The shipped model of word problems."""
FAMILIES: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def build_model(
    hidden: int = 96,
    layers: int = 4,
    heads: int = 4,
    feed_forward: int = 288,
    vocabulary: Vocabulary = PROGRAMS,
    *,
    family: str = "qwen2",
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> PreTrainedModel:
    """An untrained model; draws its weights from torch's global generator. family: of `FAMILIES`. kv_heads: all heads
    if None. head_dim: hidden / heads if None."""
    make_config, make_model = FAMILIES[family]
    config = make_config(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        head_dim=head_dim or hidden // heads,
    )
    made: PreTrainedModel = make_model(config)
    return made


def save_model(model: PreTrainedModel, directory: Path, vocabulary: Vocabulary = PROGRAMS) -> None:
    """Write weights, configuration and tokenizer. The output head is tied to the embedding and is not stored."""
    directory.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    tensors: dict[str, Tensor] = {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    vocabulary.save(directory)


def write_gate(directory: Path, gate: dict[str, object]) -> None:
    """Write the gate's measurements to gate.json beside the weights."""
    (directory / "gate.json").write_text(json.dumps(gate, indent=2) + "\n")
