"""Loads a model and its tokenizer from disk. Names a missing, torn or mismatched file before doing anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from profiles.errors import ExitCode, LonghaulError
from profiles.hub_model import directory_of
from profiles.schema import Model as Knobs
from profiles.text_part import is_composite, text_part
from workers.models import base_cache, quantized, random_init, reader, stored
from workers.models.directory import check, code_files, read_json
from workers.models.files import unusable
from workers.models.identity import base_sha256
from workers.models.weights import is_finite

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
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
    directory = directory_of(knobs)
    if knobs.revision and not directory.is_dir():
        repository = knobs.path.partition("@")[0]
        raise LonghaulError(
            f"{repository} at {knobs.revision[:12]} is not on this machine: there is no {directory}",
            kept="the run, unchanged",
            next_command=f"hf download {repository} --revision {knobs.revision}   then the same command",
            exit_code=ExitCode.INPUT,
        )
    check(directory)
    return directory


def refuse_what_is_not_plain(directory: Path) -> None:
    """Raises LonghaulError (INPUT) for a checkpoint that only our own reader turns into a plain causal model."""
    config = read_json(directory / "config.json")
    if is_composite(config):
        raise unusable(directory, "describes a model that reads more than text, which this kind of worker cannot train")
    if method := stored.method_of(config):
        raise unusable(directory, f"is quantised ({method}), which this kind of worker cannot train")


def load_model(directory: Path, knobs: Knobs, device: torch.device, sha256: str = "") -> Any:
    """The model with its weights, in evaluation mode: rollouts and updates must agree, so there is no dropout.

    Of a checkpoint that also reads images or sound, the language model. sha256: hash of the base's files, where the
    caller has it. Raises LonghaulError (INPUT) unless the weights are exactly those that the config asks for:
    transformers would silently draw the missing ones at random.
    """
    config = read_json(directory / "config.json")
    reading, why = stored.reading_of(text_part(config), knobs.quantization)
    if why:
        raise unusable(directory, why)
    if knobs.quantization != "nf4" or reading == "nf4":
        return _finite(_placed(reader.read(directory, knobs, device, reading=reading), knobs, device), directory)

    def quantise() -> Any:
        with reader.in_floating_point(directory, knobs, reading) as source:
            reader.refuse_not_finite_files(source)
            return reader.read(source, knobs, device, reading="plain", quantizes=True)

    facts = base_cache.made_of(sha256 or base_sha256(directory), knobs.dtype, device.type)
    read = partial(reader.read, knobs=knobs, device=device, reading="nf4")
    return _placed(base_cache.quantised(facts, knobs, quantise, read), knobs, device)


def _placed(model: Any, knobs: Knobs, device: torch.device) -> Any:
    if knobs.quantization == "nf4":
        quantized.keep_gradients(model)
        quantized.compute_in(model, getattr(torch, knobs.dtype))
        return model.eval()
    return model.to(device).eval()


def _finite(model: Any, directory: Path) -> Any:
    buffers = dict(model.named_buffers())  # a mask may hold infinities
    for name, tensor in model.state_dict().items():
        if name not in buffers and tensor.is_floating_point() and not is_finite(tensor):
            raise reader.not_finite(directory, name)
    return model


def is_compared(config: Mapping[str, Any]) -> bool:
    """Whether our own code can compute this model: it knows the family and every part of the config."""
    return reader.is_compared(config)


def empty_model(directory: Path, knobs: Knobs, device: torch.device) -> Any:
    """The model of a directory's config with arbitrary weights, which the checkpoint then replaces."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    if read_json(directory / "config.json").get("auto_map"):
        return load_model(directory, knobs, device)
    config = AutoConfig.from_pretrained(directory)
    if not is_compared(config.to_dict()):  # only loading gives some parts their own dtype
        return load_model(directory, knobs, device)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=getattr(torch, knobs.dtype), attn_implementation=reader.attention_for(config.to_dict()))
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
        self._special = {token for token, added in self._backend.get_added_tokens_decoder().items() if added.special}
        self._first = self._first_tokens()

    def _first_tokens(self) -> tuple[int, ...]:
        """What the tokenizer puts before a text, such as <bos>."""
        alone = self._backend.encode("a", add_special_tokens=False).ids
        around = self._backend.encode("a", add_special_tokens=True).ids
        begins = (place for place in range(len(around)) if around[place : place + len(alone)] == alone)
        return tuple(around[: next(begins, 0)])

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """The ids of a prompt: with the tokens that the tokenizer puts first, once.

        A text that begins with a special token is whole: it comes from a chat template, which writes <bos> itself or
        leaves it out on purpose.
        """
        ids = self.encode(text)
        return ids if ids and ids[0] in self._special else self._first + ids

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


def static_files(source: Path, model: Any) -> StaticFiles:
    """What a checkpoint of all weights holds beside them, so that it loads like any other model directory."""
    config = read_json(source / "config.json")
    extra = {}
    if is_composite(config) or stored.method_of(config):
        extra["config.json"] = json.dumps(reader.plain_config(source, model), indent=2, sort_keys=True).encode() + b"\n"
    code = tuple(code_files(source)) if config.get("auto_map") else ()
    return StaticFiles(source, (*MODEL_FILES, *code), extra)


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
