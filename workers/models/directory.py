"""What a model directory must hold before anything of it is loaded: files that are whole and fit each other.

Reads JSON and the headers of weights, no tensor, and imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from profiles.text_part import text_part
from state.weights import INDEX, fault_of, shards
from workers.models.files import ModelFileError, unusable

ADAPTER_CONFIG = "adapter_config.json"


def check(directory: Path) -> None:
    """Raises LonghaulError (INPUT) unless config, tokenizer and weights are present, whole and consistent."""
    if not directory.is_dir():
        raise LonghaulError(
            f"there is no model directory {directory}",
            kept="the run, unchanged",
            next_command=f"hf download OWNER/NAME --local-dir {directory}   or set model.path",
            exit_code=ExitCode.INPUT,
        )
    _refuse_adapter(directory)
    config, tokenizer = (read_json(directory / name) for name in ("config.json", "tokenizer.json"))
    _check_tokens(directory, text_part(config), tokenizer)
    _check_weights(directory)


def read_json(path: Path) -> dict[str, Any]:
    """Raises LonghaulError (INPUT) unless the file holds a JSON object."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise unusable(path, "is missing") from None
    except ValueError as error:
        raise unusable(path, f"is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise unusable(path, "is not a JSON object")
    return content


def _refuse_adapter(directory: Path) -> None:
    """Raises LonghaulError (INPUT) for an adapter without its model: which base it fits is not ours to guess."""
    if (directory / "config.json").exists() or not (directory / ADAPTER_CONFIG).exists():
        return
    base = read_json(directory / ADAPTER_CONFIG).get("base_model_name_or_path") or "its base"
    raise ModelFileError(
        f"{directory} holds an adapter of {base}, not a model",
        kept="the run, unchanged",
        next_command=f"set model.path to {base}; or merge them first (peft's merge_and_unload, then save_pretrained)",
        exit_code=ExitCode.INPUT,
    )


def _check_tokens(directory: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> None:
    """Padded vocabularies are fine: published models have more embeddings than their tokenizer has tokens."""
    known = config.get("vocab_size")
    if not isinstance(known, int):
        return
    used = tokens_of(tokenizer)
    if used > known:
        raise unusable(directory / "tokenizer.json", f"makes ids up to {used - 1}, but the model knows {known} tokens")
    for name in ("generation_config.json", "config.json"):
        if not (directory / name).is_file():
            continue
        ends = text_part(read_json(directory / name)).get("eos_token_id")
        for end in ends if isinstance(ends, list) else [ends]:
            if isinstance(end, int) and end >= known:
                raise unusable(directory / name, f"ends answers with token {end}, but the model knows {known} tokens")


def tokens_of(tokenizer: Mapping[str, Any]) -> int:
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
            raise unusable(shard, f"{why}{_other_format(directory) if why == 'is missing' else ''}")


def _other_format(directory: Path) -> str:
    others = sorted(path.name for path in directory.glob("*") if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
    return f", and {others[0]} is not read: only safetensors is" if others else ""


def code_files(directory: Path) -> Iterator[str]:
    """Names of Python files beside the weights: the code of a model that transformers does not know."""
    return (path.name for path in sorted(directory.glob("*.py")))
