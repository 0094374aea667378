"""A model and its tokenizer from disk: what is missing, torn or does not fit is named before anything else happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.families import architecture_of, name_of
from profiles.schema import Model as Knobs
from workers.models import quantized, random_init
from workers.models.files import unusable

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "LICENSE",
)
MODEL_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)
STATIC_FILES = (*MODEL_FILES, "adapter_config.json")
"""Files of a checkpoint that are no state: with them it loads like any model, or like any adapter."""


@contextmanager
def opened_model(knobs: Knobs, seed: int) -> Iterator[Path]:
    """The directory of the model that the profile names, or one made from `seed` that is gone afterwards."""
    if knobs.random_init == "off":
        yield model_directory(knobs)
        return
    with TemporaryDirectory(prefix="longhaul-model-") as made:
        random_init.write(knobs.random_init, seed, knobs.dtype, Path(made))
        yield Path(made)


def model_directory(knobs: Knobs) -> Path:
    """Where the model that the profile names lies. Raises LonghaulError (INPUT) naming the first bad file."""
    known = BUILT_IN.get(knobs.path)
    directory = known.directory if known is not None else Path(knobs.path).expanduser()
    check(directory)
    return directory


def check(directory: Path) -> None:
    """Raises LonghaulError (INPUT) unless config, tokenizer and weights are there, whole, and fit each other."""
    if not directory.is_dir():
        raise LonghaulError(
            f"there is no model directory {directory}",
            kept="the run, unchanged",
            next_command=f"hf download OWNER/NAME --local-dir {directory}   or set model.path",
            exit_code=ExitCode.INPUT,
        )
    config, tokenizer = (_json(directory / name) for name in ("config.json", "tokenizer.json"))
    if "text_config" in config:
        raise unusable(
            directory / "config.json",
            f"describes a model that reads more than text ({name_of(config)}), which is not trained here: "
            "save its language model alone as a causal model",
        )
    used, known = _tokens(tokenizer), config.get("vocab_size")
    if isinstance(known, int) and used > known:
        raise unusable(directory / "tokenizer.json", f"makes ids up to {used - 1}, but the model knows {known} tokens")
    _check_weights(directory)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise unusable(path, "is missing") from None
    except ValueError as error:
        raise unusable(path, f"is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise unusable(path, "is no JSON object")
    return content


def _tokens(tokenizer: Mapping[str, Any]) -> int:
    """One more than the highest id that a `tokenizer.json` can make; 0 where it does not say. (pure)"""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    ids += [token["id"] for token in tokenizer.get("added_tokens") or []]
    return max(ids, default=-1) + 1


def _check_weights(directory: Path) -> None:
    named: set[str] = set()
    if (directory / INDEX).exists():
        named = set(_json(directory / INDEX).get("weight_map", {}).values())
    shards = sorted(named | {path.name for path in directory.glob("*.safetensors")})
    for shard in shards or [WEIGHTS]:
        path = directory / shard
        if not path.exists():
            raise unusable(path, "is missing")
        try:
            with safe_open(path, framework="pt") as tensors:
                tensors.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise unusable(path, f"is torn or no safetensors file: {error}") from error


def load_model(directory: Path, knobs: Knobs, device: torch.device) -> Any:
    """The model with its weights, in evaluation mode: no dropout, as rollouts and updates must agree.

    Raises LonghaulError (INPUT) where the weights are not exactly those that the config asks for: what is missing would
    be drawn at random, and nobody would be told.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    read: Any = AutoModelForCausalLM.from_pretrained
    options: dict[str, Any] = {"dtype": getattr(torch, knobs.dtype)}
    config = _json(directory / "config.json")
    is_plain = not is_compared(config)
    if not is_plain:  # our passes hand over masks that other kinds do not take; for others transformers chooses
        options["attn_implementation"] = "sdpa"
    elif config.get("attn_logit_softcapping"):  # older transformers choose a kernel that drops the cap
        options["attn_implementation"] = "eager"
    if knobs.quantization == "nf4":
        options |= {"quantization_config": quantized.nf4_config(knobs.dtype), "device_map": {"": device}}
    try:
        model, found = read(directory, output_loading_info=True, **options)
    except (ValueError, KeyError, OSError) as error:
        raise unusable(directory / "config.json", f"cannot be loaded: {error}") from error
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise unusable(directory, "has weights of other shapes than its config.json says") from error
    except (ImportError, AttributeError, TypeError, NotImplementedError) as error:
        if not is_plain:
            raise
        # What an architecture lacks here, a library or a field, transformers says in errors of any of these types.
        raise unusable(directory / "config.json", f"cannot be loaded: {type(error).__name__}: {error}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, found.get(kind) or ())):
            raise unusable(directory, f"has weights that do not fit its config.json: {kind} {', '.join(names[:3])}")
    if knobs.quantization == "nf4":
        quantized.keep_gradients(model)
        return model.eval()
    return model.to(device).eval()


def is_compared(config: Mapping[str, Any]) -> bool:
    """Whether our own code computes models of this family, if every part of this one is known to it."""
    found = architecture_of(config)
    return found is not None and found.is_compared


def empty_model(directory: Path, knobs: Knobs, device: torch.device) -> Any:
    """The model of a directory's config with weights that mean nothing: they are restored from the checkpoint."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(directory)
    if not is_compared(config.to_dict()):  # some parts have a dtype of their own, which only loading gives them
        return load_model(directory, knobs, device)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=getattr(torch, knobs.dtype), attn_implementation="sdpa")
    if (directory / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    return model.to(device).eval()


class Tokenizer:
    """`tokenizer.json` as it is. transformers' automatic class puts rules of its own in place of a custom file's."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = directory / "tokenizer.json"
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise unusable(path, f"is missing or no tokenizer: {error}") from error

    def to_json(self) -> str:
        """What `tokenizer.json` holds."""
        return str(self._backend.to_str())

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of exactly this text: nothing is put before or after it."""
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def stream(self) -> Callable[[int], str]:
        """From one id after the other to the text that it completes; empty in the middle of a character."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(self._backend, token) or ""

    def decode(self, ids: Sequence[int]) -> str:
        """The text with its marks: an answer that holds one in the wrong place must show it."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


class StaticFiles:
    """Config and tokenizer, held in memory: the checkpoint that they came from may be pruned while we train.

    names: those of the files that are copied, where they exist. extra: name -> content of files that are made.
    """

    def __init__(
        self, source: Path, names: Sequence[str] = MODEL_FILES, extra: Mapping[str, bytes] | None = None
    ) -> None:
        copied = {name: (source / name).read_bytes() for name in names if (source / name).is_file()}
        self._contents = copied | dict(extra or {})

    def write(self, directory: Path) -> None:
        for name, content in self._contents.items():
            (directory / name).write_bytes(content)
