"""Loads a checkpoint as a model of transformers or peft. The only module here that imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from longhaul.records import Checkpoint
from longhaul.run import LoadedModel
from orchestrator.evaluation.target import choose_checkpoint
from orchestrator.reading import held
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.layout import RunDir
from workers.models.load import load_model, opened_model


def load(run: RunDir, which: str, device: str, checkpoints: Sequence[Checkpoint]) -> LoadedModel:
    """which: head, best, or a step. Raises LonghaulError (INPUT)."""
    chosen = choose_checkpoint(run, which, "generate")
    found = [one for one in checkpoints if one.path == chosen.directory]
    if not found:
        raise LonghaulError(
            f"run '{run.name}' does not keep the checkpoint {chosen.directory.name}",
            kept="everything",
            next_command=f"python -m orchestrator status --run {run.name}",
            exit_code=ExitCode.INPUT,
        )
    with held(run, chosen) as directory:
        has_adapter = (directory / "adapter_config.json").is_file()
        read = _with_adapter if has_adapter else _whole
        model, tokenizer = read(directory, chosen.profile, torch.device(device))
    return LoadedModel(model, tokenizer, found[-1])


def _whole(directory: Path, profile: Profile, device: torch.device) -> tuple[Any, Any]:
    return load_model(directory, profile.model, device), _tokenizer(directory)


def _with_adapter(directory: Path, profile: Profile, device: torch.device) -> tuple[Any, Any]:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise LonghaulError(
            "this checkpoint is an adapter, and the package peft is not installed",
            kept="everything",
            next_command="pip install 'longhaul[gpu]'",
            exit_code=ExitCode.INPUT,
        ) from error
    with opened_model(profile.model, profile.run.seed) as base:
        model = load_model(base, profile.model, device)
        tokenizer = _tokenizer(directory if (directory / "tokenizer.json").is_file() else base)
    return PeftModel.from_pretrained(model, str(directory)).eval(), tokenizer


def _tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(directory))
