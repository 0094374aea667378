"""The workload of every contender of `benchmarks.grpo`: a random model, a prompt and rewards.

(pure, except `write_model`)
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders.lengths import lengths_of
from profiles.shapes import ARCHITECTURES

SHAPES: dict[str, dict[str, Any]] = {
    **ARCHITECTURES,
    "tiny": ARCHITECTURES["qwen2-tiny"] | {"vocab_size": 512, "tie_word_embeddings": False},
}
SEED = 0
LORA_TARGETS = ("k_proj", "o_proj", "q_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Workload:
    """One step: `group_size` completions of one prompt, with the lengths from `lengths`, and one update."""

    shape: str = "r1-qwen-1.5b"
    group_size: int = 8
    prompt: int = 128
    """Tokens."""
    completion: int = 512
    """Tokens of every completion, which end tokens do not end. With `real_lengths`, the maximum."""
    lora_rank: int = 16
    lora_alpha: int = 32
    learning_rate: float = 1e-5
    clip: float = 0.2
    real_lengths: bool = False
    """Whether rows end at different lengths, each with the end token."""

    @property
    def vocabulary(self) -> int:
        return int(SHAPES[self.shape]["vocab_size"])

    def lengths(self, step: int) -> tuple[int, ...]:
        """Completion length of each row in `step`, the same for all contenders."""
        if self.real_lengths:
            return lengths_of(self.group_size, self.completion, step)
        return (self.completion,) * self.group_size

    def prompt_ids(self, step: int) -> tuple[int, ...]:
        """The prompt of `step`, the same for all contenders. Avoids special tokens at the end of the vocabulary."""
        draws = random.Random(f"{SEED} {step}")
        return tuple(draws.randrange(self.vocabulary // 100, self.vocabulary * 98 // 100) for _ in range(self.prompt))


def rewards(count: int) -> list[float]:
    """Rewards of a group's rows: alternately 0 and 1, so that no contender skips a uniform group. (pure)"""
    return [float(row % 2) for row in range(count)]


def text_of(ids: tuple[int, ...]) -> str:
    """Text that the trivial tokenizer encodes as exactly these ids. (pure)"""
    return " ".join(f"t{number}" for number in ids)


def write_model(shape: str, directory: Path) -> None:
    """Fill `directory` with a config, bfloat16 weights from a fixed seed, and a tokenizer with one word per id.

    Uses the GPU if there is one: all contenders read the same files, so the random generator does not matter.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    rope = {"rope_theta": 10_000.0, "rope_type": "default"}
    usual: dict[str, Any] = {"tie_word_embeddings": True, "rope_parameters": rope}
    facts = copy.deepcopy(usual | SHAPES[shape])  # a config writes into the parameters that it is given
    size = facts["vocab_size"]
    end = f"t{size - 1}"
    describe: Any = AutoConfig.for_model
    config = describe(**facts, bos_token_id=None, eos_token_id=size - 1, pad_token_id=size - 1)
    make: Any = AutoModelForCausalLM.from_config
    torch.manual_seed(SEED)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = make(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(size)}, unk_token=end))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken(end, special=True)])
    words.save(str(directory / "tokenizer.json"))
    told = {"tokenizer_class": "TokenizersBackend", "eos_token": end, "pad_token": end}
    (directory / "tokenizer_config.json").write_text(json.dumps(told))
