"""Creates model directories from a seed: real shapes with random weights, for rehearsals and measurements.

Later code reads the directory like a downloaded one, so a rehearsal exercises the real path.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from profiles.named_shapes import ARCHITECTURES as ARCHITECTURES
from workers.rng import derive

EOS, SPECIAL = "<|endoftext|>", ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""With the switch of Qwen 3, so that a rehearsal takes any `model.thinking`."""


def write(name: str, seed: int, dtype: str, directory: Path) -> None:
    """Fill `directory` with the model `name`: config, weights drawn from `seed`, and a tokenizer of single bytes."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = byte_tokenizer()
    config = config_of(name, tokenizer.token_to_id(EOS))
    make: Any = AutoModelForCausalLM.from_config
    # Without memory at first: torch's layers would draw weights, and transformers all of them again.
    with torch.device("meta"):
        model = make(config, dtype=getattr(torch, dtype))
    model.to_empty(device=torch.get_default_device())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, 0, f"random_init {name}"))
        model.init_weights()
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


def config_of(name: str, eos: int) -> Any:
    """transformers' config of the model `name`, whose text ends with the token `eos`."""
    from transformers import AutoConfig

    describe: Any = AutoConfig.for_model
    usual = {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"}}
    # A config writes into the parameters that it is given.
    chosen = copy.deepcopy({**usual, **ARCHITECTURES[name]})
    return describe(**chosen, bos_token_id=None, eos_token_id=eos, pad_token_id=eos)


def byte_tokenizer() -> Any:
    """Each byte is a token, and so is each chat mark. It reads any text and needs no training."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
