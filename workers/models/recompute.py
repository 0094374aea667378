"""Gradient checkpointing: activations of a decoder layer are computed again in the backward pass instead of kept.

Only while gradients are made: a rollout through the same layers keeps its cache. Non-reentrant, so that it works where
the layer's input needs no gradient, as over frozen embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from profiles.errors import ExitCode, LonghaulError


def enable(model: Any) -> None:
    """Let `while_learning` have an effect on `model`, a decoder of transformers.

    Raises LonghaulError (INPUT) where its layers cannot be computed again.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise LonghaulError(
            f"model.gradient_checkpointing is on, and {type(model).__name__} has no layers that can be recomputed",
            kept="the run, unchanged",
            next_command="the same command with --set model.gradient_checkpointing=false",
            exit_code=ExitCode.INPUT,
        )
    model.recomputed_layers = tuple(layers)
    for layer in layers:
        layer.gradient_checkpointing = True
        # There is no dropout, so the second computation needs no generator's state.
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@contextmanager
def while_learning(model: Any) -> Iterator[None]:
    """Forward passes inside keep only the layers' inputs, where gradients are on and the model was enabled.

    transformers looks at the layer's `training`. It is set on the layer alone, not on what is inside it.
    """
    layers = getattr(model, "recomputed_layers", ()) if torch.is_grad_enabled() else ()
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
