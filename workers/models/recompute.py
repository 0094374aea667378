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


def enable(model: Any) -> None:
    """Let `while_learning` have an effect on `model`, a decoder of transformers."""
    for layer in model.model.layers:
        layer.gradient_checkpointing = True
        # There is no dropout, so the second computation needs no generator's state.
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@contextmanager
def while_learning(model: Any) -> Iterator[None]:
    """Forward passes inside keep only the layers' inputs, where gradients are on and the model was enabled.

    transformers looks at the layer's `training`. It is set on the layer alone, not on what is inside it.
    """
    layers = [one for one in model.model.layers if one.gradient_checkpointing] if torch.is_grad_enabled() else []
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
