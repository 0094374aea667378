"""All weights of a model as one file of a checkpoint. An adapter's are in adapters.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from profiles.errors import ExitCode, LonghaulError
from state.weights import WEIGHTS
from workers.models.files import unusable


def is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite. Sums in float32 first, which takes no memory: it shows either."""
    if tensor.dtype.itemsize == 1 or bool(torch.isfinite(tensor.sum(dtype=torch.float32))):
        return True
    return bool(torch.isfinite(tensor).all())


def refuse_not_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raises LonghaulError (NOT_FINITE) if a weight is NaN or infinite; such a checkpoint is never written."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise LonghaulError(
                f"the weights {name} are not finite",
                kept="the head; this checkpoint was not made",
                next_command="python -m orchestrator run --set optimizer.learning_rate=... --accept-changes",
                exit_code=ExitCode.NOT_FINITE,
            )


class Weights:
    """All weights in one file that `from_pretrained` reads. Registered."""

    filename = WEIGHTS

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = list(model.state_dict())  # read now: once sharded, the model would list its shards

    def save(self, path: Path) -> None:
        """Raises LonghaulError (NOT_FINITE) if a weight is NaN or infinite; such a checkpoint is never written."""
        tensors = self._tensors()
        refuse_not_finite(tensors)
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})

    def load(self, path: Path) -> None:
        stored = load_file(path)
        tensors = self._tensors()
        wrong = sorted(stored.keys() ^ tensors.keys())
        if wrong:
            raise unusable(path, f"does not fit the model: {wrong[0]}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(stored[name])

    def _tensors(self) -> dict[str, Tensor]:
        """Each storage once: a tied output head is the embedding, and safetensors refuses to store it twice."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name in self._names:
            owner, _, last = name.rpartition(".")
            tensor = getattr(self._model.get_submodule(owner), last).detach()
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found[name] = tensor
        return found
