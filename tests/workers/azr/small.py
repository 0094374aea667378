"""A model directory of a few kilobytes with a real tokenizer, and an engine that says what a script tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from profiles.schema import Azr, Model, Profile, Sampling
from tests.profiles.variants import with_variants
from workers.azr.proposing import Tools
from workers.models.load import Tokenizer
from workers.rollout.engine import Request, Rollout
from workers.rollout.engine import Sampling as How
from workers.sandbox import Sandbox
from workers.tasks.prompts import abduction, deduction, induction, wording
from workers.tasks.styles import style_of

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 4000

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@cache
def tokenizer_json() -> str:
    """Byte pairs learnt from the prompts themselves, so that a prompt has a few hundred tokens."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    modules = (wording, abduction, deduction, induction)
    texts = [value for module in modules for value in vars(module).values() if isinstance(value, str)]
    backend.train_from_iterator(texts, trainer)
    return str(backend.to_str())


def write_tokenizer(directory: Path, chat_template: str | None = CHATML) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer_json())
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    config |= {"chat_template": chat_template} if chat_template else {}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def write_model(directory: Path) -> Path:
    """One layer, random weights: it writes nonsense."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    write_tokenizer(directory)
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
                         tie_word_embeddings=True, eos_token_id=2)  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


Script = Callable[[str, int], str]
"""(prompt, seed of the request) -> completion."""


class Scripted:
    """A rollout engine that says what the script says, and ends each completion with a stop token."""

    def __init__(self, tokenizer: Tokenizer, script: Script) -> None:
        self._tokenizer, self._script = tokenizer, script
        self.prompts: list[str] = []
        self.asked: list[How] = []
        """How, at each call."""

    def generate(self, requests: Sequence[Request], sampling: How) -> list[Rollout]:
        rollouts = []
        self.asked.append(sampling)
        for request in requests:
            prompt = self._tokenizer.decode(request.prompt_ids)
            self.prompts.append(prompt)
            ids = (*self._tokenizer.encode(self._script(prompt, request.seed)), 2)
            rollouts.append(Rollout(request.prompt_ids, ids, (-1.0,) * len(ids), "stop"))
        return rollouts

    def rest(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def azr_profile(*, style: str = "azr", path: str = "", **azr: Any) -> Profile:
    knobs = {"proposals_per_task": 2, "group_size": 4, "references": 6, "train_on_estimates": False} | azr
    return Profile(
        name="test",
        model=Model(path=path or "pocket", prompt_style=style),  # type: ignore[arg-type]
        sampling=Sampling(temperature=0.8, max_prompt_tokens=2500, max_completion_tokens=1000),
        azr=with_variants(Azr, **knobs),
    )


def scripted_tools(directory: Path, sandbox: Sandbox, script: Script, **azr: Any) -> tuple[Tools, Scripted]:
    profile = azr_profile(**azr)
    tokenizer = Tokenizer(write_tokenizer(directory))
    engine = Scripted(tokenizer, script)
    tools = Tools(
        profile=profile,
        style=style_of(profile, directory),
        tokenizer=tokenizer,
        engine=engine,
        sandbox=sandbox,
        is_held_out=lambda program: False,
        is_output_allowed=lambda value: True,
    )
    return tools, engine


def said(answer: str, thought: str = "so") -> str:
    """A well-formed completion."""
    return f"{thought}</think>\n<answer>{answer}</answer>"


def triplet(program: str, argument: str) -> str:
    """What a proposer writes for deduction and abduction."""
    return f"```python\n{program}\n```\n```input\n{argument}\n```"
