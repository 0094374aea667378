"""A checkpoint of verl's shards as a Hugging Face model, or as the adapter that peft reads, by verl's own merger."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from workers.models.load import TOKENIZER_FILES, opened_model
from workers.verl import preparing

ADAPTER = "lora_adapter"
"""Folder in which the merger puts the adapter of a run that trains one."""


def write_model(profile: Profile, head: Path, out: Path) -> str:
    """Weights, config and tokenizer into `out`. Returns the weights' precision. Raises LonghaulError."""
    layout = preparing.read_layout(head)
    if profile.adapter.rank and layout.gpus:
        raise _refused(
            "this run trains an adapter, and its checkpoints hold nothing else",
            "python -m orchestrator export --adapter",
        )
    with (
        opened_model(profile.model, profile.run.seed) as base,
        tempfile.TemporaryDirectory(dir=out.parent, prefix=".merged-") as folder,
    ):
        merged = preparing.merge(head, Path(folder)) if layout.gpus else base
        _move(merged, out, ("config.json", "generation_config.json"), copy=not layout.gpus)
        for path in sorted(merged.glob("*.safetensors*")):
            _move(merged, out, (path.name,), copy=not layout.gpus)
        # The tokenizer as the profile's model has it: the merger writes what a library made of it.
        _move(base, out, TOKENIZER_FILES, copy=True)
    config = json.loads((out / "config.json").read_bytes())
    return str(config.get("dtype") or config.get("torch_dtype") or profile.model.dtype)


def write_adapter(profile: Profile, head: Path, out: Path) -> str:
    """Raises LonghaulError (INPUT) where the run trains all weights or has done no step."""
    if not profile.adapter.rank or not preparing.read_layout(head).gpus:
        raise _refused("this checkpoint has no adapter", "python -m orchestrator export --merged --out ...")
    with (
        opened_model(profile.model, profile.run.seed) as base,
        tempfile.TemporaryDirectory(dir=out.parent, prefix=".merged-") as folder,
    ):
        merged = preparing.merge(head, Path(folder))
        _move(merged / ADAPTER, out, ("adapter_model.safetensors", "adapter_config.json"), copy=False)
        _move(base, out, TOKENIZER_FILES, copy=True)
    return "float32"


def _move(source: Path, target: Path, names: tuple[str, ...], *, copy: bool) -> None:
    for name in names:
        if (source / name).is_file():
            (shutil.copyfile if copy else shutil.move)(source / name, target / name)


def _refused(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(
        what,
        kept="the checkpoint, unchanged; nothing was exported",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )
