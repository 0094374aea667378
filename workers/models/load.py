"""Loads a model and its tokenizer from disk. Names a missing, torn or mismatched file before doing anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.families import architecture_of, name_of
from profiles.schema import Model as Knobs
from state.weights import INDEX, fault_of, shards
from workers.models import quantized, random_init
from workers.models.files import unusable

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
"""Files of a checkpoint that hold no state. With them it loads like any other model or adapter."""


@contextmanager
def opened_model(knobs: Knobs, seed: int) -> Iterator[Path]:
    """The directory of the profile's model. A model made from `seed` is deleted afterwards."""
    if knobs.random_init == "off":
        yield model_directory(knobs)
        return
    with TemporaryDirectory(prefix="longhaul-model-") as made:
        random_init.write(knobs.random_init, seed, knobs.dtype, Path(made))
        yield Path(made)


def model_directory(knobs: Knobs) -> Path:
    """The directory of the model that the profile names. Raises LonghaulError (INPUT) naming the first bad file."""
    known = BUILT_IN.get(knobs.path)
    directory = known.directory if known is not None else Path(knobs.path).expanduser()
    check(directory)
    return directory


def check(directory: Path) -> None:
    """Raises LonghaulError (INPUT) unless config, tokenizer and weights are present, whole and consistent."""
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
        raise unusable(path, f"is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise unusable(path, "is not a JSON object")
    return content


def _tokens(tokenizer: Mapping[str, Any]) -> int:
    """One more than the highest id in a `tokenizer.json`; 0 if it cannot be read from it. (pure)"""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    ids += [token["id"] for token in tokenizer.get("added_tokens") or []]
    return max(ids, default=-1) + 1


def _check_weights(directory: Path) -> None:
    try:
        found = shards(directory)
    except ValueError as error:
        raise unusable(directory / INDEX, f"cannot be used: {error}") from error
    for shard in found:
        if why := fault_of(shard):
            raise unusable(shard, why)


def load_model(directory: Path, knobs: Knobs, device: torch.device) -> Any:
    """The model with its weights, in evaluation mode: rollouts and updates must agree, so there is no dropout.

    Raises LonghaulError (INPUT) unless the weights are exactly those that the config asks for: transformers would
    silently draw the missing ones at random.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    read: Any = AutoModelForCausalLM.from_pretrained
    options: dict[str, Any] = {"dtype": getattr(torch, knobs.dtype)}
    config = _json(directory / "config.json")
    is_plain = not is_compared(config)
    if not is_plain:  # other families do not take our masks, so transformers chooses their attention
        options["attn_implementation"] = _attention_for(config)
    elif config.get("attn_logit_softcapping"):  # older transformers choose a kernel that ignores the cap
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
        # If transformers lacks the library or config field that an architecture needs, it raises any of these types.
        raise unusable(directory / "config.json", f"cannot be loaded: {type(error).__name__}: {error}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, found.get(kind) or ())):
            raise unusable(directory, f"has weights that do not fit its config.json: {kind} {', '.join(names[:3])}")
    if knobs.quantization == "nf4":
        quantized.keep_gradients(model)
        return model.eval()
    return model.to(device).eval()


def _attention_for(config: Mapping[str, Any]) -> str:
    """transformers' name for the attention of a model that our own code computes; `attention.enable` replaces it. A
    class that may have soft caps does not take `sdpa`."""
    import transformers

    found = architecture_of(config)
    kind = getattr(transformers, found.model_class, None) if found else None
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"


def is_compared(config: Mapping[str, Any]) -> bool:
    """Whether our own code can compute this model: it knows the family and every part of the config."""
    found = architecture_of(config)
    return found is not None and found.is_compared


def empty_model(directory: Path, knobs: Knobs, device: torch.device) -> Any:
    """The model of a directory's config with arbitrary weights, which the checkpoint then replaces."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(directory)
    if not is_compared(config.to_dict()):  # only loading gives some parts their own dtype
        return load_model(directory, knobs, device)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=getattr(torch, knobs.dtype), attn_implementation=_attention_for(config.to_dict()))
    if (directory / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    return model.to(device).eval()


class Tokenizer:
    """`tokenizer.json` as it is. transformers' automatic class replaces a custom file's rules with its own."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = directory / "tokenizer.json"
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise unusable(path, f"is missing or not a tokenizer: {error}") from error

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        return str(self._backend.to_str())

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of exactly this text, without special tokens around it."""
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def stream(self) -> Callable[[int], str]:
        """A decoder for a stream of ids: each call returns the text that the id completes, "" inside a character."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(self._backend, token) or ""

    def decode(self, ids: Sequence[int]) -> str:
        """The text including special tokens, so that a misplaced one is visible in an answer."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))


class StaticFiles:
    """Config and tokenizer, held in memory: their source checkpoint may be pruned during training.

    names: files to copy, where they exist. extra: name -> content of files to create.
    """

    def __init__(
        self, source: Path, names: Sequence[str] = MODEL_FILES, extra: Mapping[str, bytes] | None = None
    ) -> None:
        copied = {name: (source / name).read_bytes() for name in names if (source / name).is_file()}
        self._contents = copied | dict(extra or {})

    def write(self, directory: Path) -> None:
        for name, content in self._contents.items():
            (directory / name).write_bytes(content)
