"""The optimiser: how it is built, its learning rate at each step, and its state as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from profiles.schema import Optimizer as Knobs


def learning_rate_at(step: int, knobs: Knobs) -> float:
    """Linear warm-up from 0, then constant, or linear decay that ends at `decay_steps`. Steps count from 1. (pure)"""
    if step < knobs.warmup_steps:
        return knobs.learning_rate * step / knobs.warmup_steps
    if knobs.decay_steps <= knobs.warmup_steps:
        return knobs.learning_rate
    done = min((step - knobs.warmup_steps) / (knobs.decay_steps - knobs.warmup_steps), 1.0)
    return knobs.learning_rate + done * (knobs.final_learning_rate - knobs.learning_rate)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def build(model: nn.Module, knobs: Knobs) -> torch.optim.AdamW:
    """AdamW over what is trainable; decay on matrices only, as a decayed norm or bias has no meaning."""
    parameters = list(trainable(model).values())
    groups = [
        {"params": [one for one in parameters if one.ndim >= 2], "weight_decay": knobs.weight_decay},
        {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=knobs.learning_rate, betas=knobs.betas, fused=True
    )


class OptimizerState:
    """Moments and step counts by the parameter's name. Registered."""

    filename = "optimizer.safetensors"

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self._optimizer, self._model = optimizer, model

    def save(self, path: Path) -> None:
        tensors = {
            f"{name}.{key}": value.detach().cpu().contiguous()
            for name, parameter in trainable(self._model).items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }
        save_file(tensors, path, metadata={"format": "pt"})

    def load(self, path: Path) -> None:
        stored: dict[str, Any] = load_file(path)
        for name, parameter in trainable(self._model).items():
            keys = [key for key in stored if key.startswith(f"{name}.") and "." not in key[len(name) + 1 :]]
            state = {key[len(name) + 1 :]: stored.pop(key) for key in keys}
            if state:
                # AdamW keeps `step` in float32 and the moments where, and as precise as, the parameter is.
                self._optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
        if stored:
            raise ValueError(f"{path.name} holds {next(iter(stored))}, which is no parameter of this model")
