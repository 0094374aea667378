"""The optimiser: its construction, its learning rate at each step, and its state as safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from profiles.schema import Optimizer as Knobs
from workers.models.master import MasterWeights
from workers.models.quantized import require

AnyOptimizer = torch.optim.Optimizer | MasterWeights
MASTER = "master"
"""Key of a weight's float32 copy, beside the keys of the optimiser's own state."""


def learning_rate_at(step: int, knobs: Knobs) -> float:
    """Linear warm-up from 0, then constant, or a linear decay that ends at `decay_steps`. Steps count from 1. (pure)"""
    if step < knobs.warmup_steps:
        return knobs.learning_rate * step / knobs.warmup_steps
    if knobs.decay_steps <= knobs.warmup_steps:
        return knobs.learning_rate
    done = min((step - knobs.warmup_steps) / (knobs.decay_steps - knobs.warmup_steps), 1.0)
    return knobs.learning_rate + done * (knobs.final_learning_rate - knobs.learning_rate)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def build(model: nn.Module, knobs: Knobs, parameters: Mapping[str, nn.Parameter] | None = None) -> AnyOptimizer:
    """AdamW over the trainable weights, or over float32 copies if they are not float32 or the optimiser is offloaded.

    parameters: used in place of the model's own, under the same names.
    """
    parameters = parameters or trainable(model)
    device = next(iter(parameters.values())).device
    is_exact = all(parameter.dtype == torch.float32 for parameter in parameters.values())
    if is_exact and not (knobs.offload and device.type != "cpu"):
        return _adamw(parameters, knobs)
    home = torch.device("cpu") if knobs.offload else device
    return MasterWeights(parameters, lambda masters: _adamw(masters, knobs), home)


def _adamw(parameters: Mapping[str, nn.Parameter], knobs: Knobs) -> torch.optim.Optimizer:
    """Weight decay on matrices only: decaying a norm or a bias has no meaning."""
    values = list(parameters.values())
    groups = [
        {"params": [one for one in values if one.ndim >= 2], "weight_decay": knobs.weight_decay},
        {"params": [one for one in values if one.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if knobs.kind == "adamw":
        return torch.optim.AdamW(groups, lr=knobs.learning_rate, betas=knobs.betas, fused=True)
    require("bitsandbytes", f'optimizer.kind = "{knobs.kind}"')
    from bitsandbytes.optim import adamw

    make: Any = adamw.PagedAdamW8bit if knobs.kind == "paged_adamw8bit" else adamw.AdamW8bit
    found: torch.optim.Optimizer = make(groups, lr=knobs.learning_rate, betas=knobs.betas)
    return found


def clip(optimizer: AnyOptimizer, model: nn.Module, max_norm: float) -> Tensor:
    """Scale the gradients down to `max_norm`; returns the norm before scaling."""
    if isinstance(optimizer, MasterWeights):
        return optimizer.clip(max_norm)
    return torch.nn.utils.clip_grad_norm_(trainable(model).values(), max_norm)


def moments_to_come(optimizer: AnyOptimizer, model: nn.Module, knobs: Knobs, ranks: int = 1) -> int:
    """Bytes that the first update adds to the model's device, on one of `ranks` that share the moments; 0 after it."""
    each = {"adamw": 8, "adamw8bit": 2, "paged_adamw8bit": 0}[knobs.kind]
    if knobs.offload or optimizer.state:
        return 0
    return each * sum(parameter.numel() for parameter in trainable(model).values()) // ranks


class Parts(Protocol):
    """Knows how state is spread over several GPUs (shards.py)."""

    parameters: Mapping[str, nn.Parameter]

    def is_sharded(self, name: str, value: Any) -> bool: ...
    def gathered(self, name: str, mine: Tensor) -> Tensor: ...
    def part(self, tensor: Tensor) -> Tensor: ...


class OptimizerState:
    """Moments and step counts by parameter name, with the scales and code books of bitsandbytes. Registered."""

    filename = "optimizer.safetensors"

    def __init__(self, optimizer: AnyOptimizer, model: nn.Module, parts: Parts | None = None) -> None:
        """parts: set for one of several ranks, each of which holds its own rows. The file is the same as for one
        rank."""
        self._optimizer, self._parts = optimizer, parts
        self._masters = optimizer.masters if isinstance(optimizer, MasterWeights) else {}
        self._parameters = self._masters or (parts.parameters if parts else trainable(model))

    def save(self, path: Path) -> None:
        save_file(dict(self.stored()), path, metadata={"format": "pt"})

    def stored(self) -> Iterator[tuple[str, Tensor]]:
        """The content of the file, item by item. With several ranks, each must iterate over all of it."""
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{name}.{key}", self._whole(name, key, value)
        for name, master in self._masters.items():
            yield f"{name}.{MASTER}", self._whole(name, MASTER, master)

    def _whole(self, name: str, key: str, value: Any) -> Tensor:
        if self._parts is not None and self._parts.is_sharded(name, value):
            return self._parts.gathered(name, value)
        return _stored(key, value)

    def _mine(self, name: str, value: Tensor) -> Tensor:
        """This rank's share of a stored value: its rows, or the whole value if it is one number for all."""
        return value if self._parts is None or value.ndim == 0 else self._parts.part(value)

    def load(self, path: Path) -> None:
        stored: dict[str, Any] = load_file(path)
        for name, parameter in self._parameters.items():
            keys = [key for key in stored if key.startswith(f"{name}.") and "." not in key[len(name) + 1 :]]
            state = {key[len(name) + 1 :]: self._mine(name, stored.pop(key)) for key in keys}
            if name in self._masters:
                with torch.no_grad():
                    parameter.copy_(state.pop(MASTER))
            if state:
                # AdamW keeps `step` in float32, and the moments on the parameter's device in its dtype.
                live = {key: self._live(key, value, parameter) for key, value in state.items()}
                self._optimizer.state[parameter] = live
        if stored:
            raise ValueError(f"{path.name} holds {next(iter(stored))}, which is not a parameter of this model")

    def _live(self, key: str, value: Tensor, parameter: Tensor) -> Any:
        """A stored value in the form that the optimiser holds: numbers as numbers, paged moments in pages."""
        if value.dtype == torch.int64:
            return int(value)
        inner: Any = self._optimizer.inner if isinstance(self._optimizer, MasterWeights) else self._optimizer
        if getattr(inner, "is_paged", False) and key in ("state1", "state2"):
            return inner.get_state_buffer(parameter, dtype=value.dtype).copy_(value)
        return value.to(parameter.device)


def _stored(key: str, value: Any) -> Tensor:
    """Make a value storable: bitsandbytes counts steps in plain integers, and shares code books, which safetensors
    refuses."""
    if isinstance(value, int):
        return torch.tensor(value, dtype=torch.int64)
    tensor: Tensor = value.detach().cpu().contiguous()
    return tensor.clone() if key.startswith("qmap") else tensor
