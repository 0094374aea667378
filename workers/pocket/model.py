"""Builds pocket models (a small Qwen2) and saves them as folders that `from_pretrained` can read."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from workers.pocket.tokenizer import PROGRAMS
from workers.pocket.vocabulary import EOS_ID, PAD_ID, Vocabulary

WEIGHTS = Path(__file__).parent / "weights"
"""The shipped model of the little language."""
WORD_PROBLEMS_WEIGHTS = Path(__file__).parent / "word_problems" / "weights"
"""The shipped model of word problems."""


def build_model(
    hidden: int = 96, layers: int = 4, heads: int = 4, feed_forward: int = 288, vocabulary: Vocabulary = PROGRAMS
) -> Qwen2ForCausalLM:
    """An untrained model; draws its weights from torch's global generator."""
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    return Qwen2ForCausalLM(config)


def save_model(model: Qwen2ForCausalLM, directory: Path, vocabulary: Vocabulary = PROGRAMS) -> None:
    """Write weights, configuration and tokenizer. The output head is tied to the embedding and is not stored."""
    directory.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["Qwen2ForCausalLM"]
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
