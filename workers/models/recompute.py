"""Gradient checkpointing: the backward pass recomputes a decoder layer's activations instead of keeping them.

It applies only while gradients are computed: a rollout through the same layers keeps its cache. It is non-reentrant,
which also works if the layer's input needs no gradient, as over frozen embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from profiles.errors import ExitCode, LonghaulError


def enable(model: Any, *, offloads_inputs: bool = False) -> None:
    """Let `while_learning` take effect on `model`, a decoder of transformers.

    offloads_inputs: the inputs of layers wait in host memory. Raises LonghaulError (INPUT) if its layers cannot be
    recomputed.
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
    again = offloaded if offloads_inputs else checkpoint
    for layer in layers:
        layer.gradient_checkpointing = True
        # There is no dropout, so recomputing needs no random state.
        layer._gradient_checkpointing_func = partial(again, use_reentrant=False, preserve_rng_state=False)


def offloaded(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """`checkpoint` whose inputs wait in host memory."""
    is_gpu = any(isinstance(one, Tensor) and one.is_cuda for one in arguments)
    with torch.autograd.graph.save_on_cpu(pin_memory=is_gpu):
        return checkpoint(function, *arguments, **options)


@contextmanager
def while_learning(model: Any) -> Iterator[None]:
    """Forward passes inside keep only the layers' inputs, if gradients are on and the model was enabled.

    transformers checks the layer's `training` flag. Only the layer's own flag is set, not those of its submodules.
    """
    layers = getattr(model, "recomputed_layers", ()) if torch.is_grad_enabled() else ()
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
