"""Weights for an engine that keeps its own copy: the trainer's weights by their plain names, or its adapter.

A model with adapters yields its base by the names from before they were injected. A quantised base is yielded as the
trainer computes with it, so that both sides hold the same numbers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from workers.models import adapters
from workers.models.adapters import adapter_of

PREFIX = "longhaul-adapter-"


def has_adapter(model: Any) -> bool:
    return any(".lora_A." in name for name, _ in model.named_parameters())


def adapter_rank(model: Any) -> int:
    return int(model.adapter_knobs.rank)


def base_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Every weight except the adapters', by its checkpoint name; tied weights once. Buffers that a checkpoint holds
    follow."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), _values(parameter)
    yield from stored_buffers(model)


def stored_buffers(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Buffers that belong to a checkpoint, such as the scale of a layer."""
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        if last not in model.get_submodule(owner)._non_persistent_buffers_set:
            yield name, buffer


def _values(parameter: Tensor) -> Tensor:
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    values: Tensor = dequantize_4bit(parameter.data, state)
    return values


class AdapterFolder:
    """A folder in memory that holds the newest adapter in peft's format, removed when closed.

    The next process removes folders of killed ones.
    """

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        root = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))

    def write(self, model: Any) -> Path:
        """Write the current adapter; returns its folder."""
        tensors = {name: one.detach().cpu().contiguous() for name, one in adapter_of(model).items()}
        save_file(tensors, self.path / adapters.WEIGHTS, {"format": "pt"})
        (self.path / adapters.CONFIG).write_bytes(adapters.config_json(model.adapter_knobs, base=""))
        return self.path

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove the folders of processes that no longer run."""
    for folder in root.glob(f"{PREFIX}*-*"):
        with suppress(ValueError, PermissionError):
            try:
                os.kill(int(folder.name.removeprefix(PREFIX).split("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
