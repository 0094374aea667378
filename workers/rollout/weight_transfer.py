"""What an engine with a copy of the weights must be told: the trainer's weights by their plain names, or its adapter.

A model with adapters gives its base once more by the names that it had before them; a quantised base is given as what
the trainer computes with, so that both sides hold the same numbers.
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
    """Every weight but the adapters', by the name that it has in a checkpoint; tied ones once."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), _values(parameter)


def _values(parameter: Tensor) -> Tensor:
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    values: Tensor = dequantize_4bit(parameter.data, state)
    return values


class AdapterFolder:
    """A folder in memory where the newest adapter lies as `peft` writes it; gone when the process closes it.

    Those of processes that were killed are removed by the next one.
    """

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        root = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        sweep(root)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))

    def write(self, model: Any) -> Path:
        """Folder with the adapter as it is now."""
        tensors = {name: one.detach().cpu().contiguous() for name, one in adapter_of(model).items()}
        save_file(tensors, self.path / adapters.WEIGHTS, {"format": "pt"})
        (self.path / adapters.CONFIG).write_bytes(adapters.config_json(model.adapter_knobs, base=""))
        return self.path

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in root.glob(f"{PREFIX}*-*"):
        with suppress(ValueError, PermissionError):
            try:
                os.kill(int(folder.name.removeprefix(PREFIX).split("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
