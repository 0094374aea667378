"""Model directories made from a seed: real shapes with weights that mean nothing, for rehearsals and measurements.

Everything after it reads the directory like one that was downloaded, so what is rehearsed is the real path.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workers.rng import derive

EOS, SPECIAL = "<|endoftext|>", ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2-tiny": {
        "vocab_size": 272, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32_768,
    },
    "qwen2.5-0.5b": {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32_768,
    },
    "qwen2.5-3b": {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 32_768,
    },
}  # fmt: skip
"""Shapes as the published configs give them; Qwen2.5 and Qwen2.5-Coder of a size are alike."""


def write(name: str, seed: int, dtype: str, directory: Path) -> None:
    """Fill `directory` with the model `name`: config, weights drawn from `seed`, and a tokenizer of single bytes."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = byte_tokenizer()
    eos = tokenizer.token_to_id(EOS)
    config = Qwen2Config(
        **ARCHITECTURES[name], tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos, pad_token_id=eos,
        rope_parameters={"rope_theta": 1_000_000.0, "rope_type": "default"},
    )  # fmt: skip
    make: Any = AutoModelForCausalLM.from_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, 0, f"random_init {name}"))
        model = make(config, dtype=getattr(torch, dtype))
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": EOS,
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


def byte_tokenizer() -> Any:
    """Each byte is a token, and the marks of a chat are one each: any text can be read, nothing needs training."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
