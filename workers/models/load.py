"""A model and its tokenizer from disk: what is missing or torn is named before anything else happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model as Knobs

WEIGHTS = "model.safetensors"
STATIC_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "LICENSE",
)  # fmt: skip
"""Files of a model directory that are no state: a checkpoint gets copies, so that it loads like any model."""


def model_directory(knobs: Knobs) -> Path:
    """Where the model that the profile names lies. Raises LonghaulError (INPUT) naming the first bad file."""
    if knobs.path == "pocket":
        directory = Path(__file__).parents[1] / "pocket" / "weights"
    else:
        directory = Path(knobs.path).expanduser()
    check(directory)
    return directory


def check(directory: Path) -> None:
    """Raises LonghaulError (INPUT) unless config, tokenizer and weights are there and whole."""
    for name in ("config.json", "tokenizer.json"):
        path = directory / name
        try:
            json.loads(path.read_bytes())
        except FileNotFoundError:
            raise _unusable(path, "is missing") from None
        except ValueError as error:
            raise _unusable(path, f"is no JSON: {error}") from error
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise _unusable(directory / WEIGHTS, "is missing")
    for shard in shards:
        try:
            with safe_open(shard, framework="pt") as tensors:
                tensors.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise _unusable(shard, f"is torn or no safetensors file: {error}") from error


def _unusable(path: Path, why: str) -> LonghaulError:
    return LonghaulError(
        f"model file {path} {why}",
        kept="the run, as it is",
        next_command="put the file back or set model.path, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )


def load_model(directory: Path, dtype: str, device: torch.device) -> Any:
    """The model with its weights, in evaluation mode: no dropout, as rollouts and updates must agree."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return _placed(model, device)


def empty_model(directory: Path, dtype: str, device: torch.device) -> Any:
    """The model of a directory's config with weights that mean nothing: they are restored from the checkpoint."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(directory)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    if (directory / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    return _placed(model, device)


def _placed(model: Any, device: torch.device) -> Any:
    return model.to(device).eval()


class Tokenizer:
    """`tokenizer.json` as it is. transformers' automatic class puts rules of its own in place of a custom file's."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend

        self._backend = Backend.from_file(str(directory / "tokenizer.json"))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of exactly this text: nothing is put before or after it."""
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text with its marks: an answer that holds one in the wrong place must show it."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


class StaticFiles:
    """Config and tokenizer, held in memory: the checkpoint that they came from may be pruned while we train."""

    def __init__(self, source: Path) -> None:
        self._contents = {name: (source / name).read_bytes() for name in STATIC_FILES if (source / name).is_file()}

    def write(self, directory: Path) -> None:
        for name, content in self._contents.items():
            (directory / name).write_bytes(content)


class Weights:
    """All weights as one file that `from_pretrained` reads. Registered."""

    filename = WEIGHTS

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def save(self, path: Path) -> None:
        """Raises LonghaulError (NOT_FINITE) where a weight is NaN or infinite: that is never a checkpoint."""
        tensors = self._tensors()
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise LonghaulError(
                    f"the weights {name} are not finite",
                    kept="the head; this checkpoint was not made",
                    next_command="python -m orchestrator run --set optimizer.learning_rate=... --accept-changes",
                    exit_code=ExitCode.NOT_FINITE,
                )
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})

    def load(self, path: Path) -> None:
        stored = load_file(path)
        tensors = self._tensors()
        wrong = sorted(stored.keys() ^ tensors.keys())
        if wrong:
            raise _unusable(path, f"does not fit the model: {wrong[0]}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(stored[name])

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Each storage once: a tied output head is the embedding, and safetensors refuses to store it twice."""
        found: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self._model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found[name] = tensor
        return found
