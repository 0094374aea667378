"""All decoder layers of a model as one autograd node. For the gradient it keeps only the layers' inputs.

It takes the place of the model's own pass, with gradient checkpointing, where all layers are fast (`fast_layers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from profiles.description import Architecture
from workers.models.fast_layers import Given, LeanLayer, normed
from workers.models.fused_layers import stream_dtype
from workers.models.host_inputs import HostInputs
from workers.models.plain import described


class Inputs(Protocol):
    """A stack of the layers' inputs."""

    def append(self, one: Tensor, /) -> None: ...

    def pop(self) -> Tensor: ...


Learnt = Callable[[Tensor], Sequence[Tensor]]
"""Maps the gradient of a pass's result to the gradients of `Stack.matrices`. Call it once at most."""


class Runner(Protocol):
    """How passes through a stack run: launched, or as graphs."""

    stack: Stack

    def score(self, given: Given, hidden: Tensor) -> Tensor:
        """Embeddings, [R, T, H], to the residual stream, [R, T, H] in its `stream_dtype`; without gradient."""

    def learn(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        """The same result, with a function that returns the gradients."""


def hidden_of(model: Any, ids: Tensor, positions: Tensor, segments: Tensor) -> Tensor | None:
    """Final hidden states, [R, T, H]; None if `model` has no stack, or its embeddings are trained."""
    runner: Runner | None = getattr(model, "fast_runner", None)
    if runner is None:
        return None
    architecture = described(model)
    assert architecture is not None
    hidden = embedded(model, architecture, ids)
    if hidden.requires_grad:
        return None
    given = given_of(model, architecture, hidden, positions, segments)
    if torch.is_grad_enabled():
        apply: Any = _Pass.apply
        out = apply(runner, given, hidden, *runner.stack.matrices())
    else:
        out = runner.score(given, hidden)
    return normed(model.model.norm, out, architecture)


Keep = Callable[[int, Tensor, Tensor], None]
"""Gets the number of a layer, and its keys and values, [R, key heads, T, D], as a cache holds them."""


def read(model: Any, ids: Tensor, positions: Tensor, segments: Tensor, keep: Keep) -> bool:
    """Pass ids through all layers for the sake of their keys and values. False: `model` has no stack.

    ids, positions: [R, T]; segments: [R, 1, T, 2]."""
    runner: Runner | None = getattr(model, "fast_runner", None)
    if runner is None:
        return False
    architecture = described(model)
    assert architecture is not None
    hidden = embedded(model, architecture, ids)
    runner.stack.forward(given_of(model, architecture, hidden, positions, segments), hidden, keep=keep)
    return True


def embedded(model: Any, architecture: Architecture, ids: Tensor) -> Tensor:
    """What the first layer reads, [R, T, H] in the dtype of the model."""
    hidden: Tensor = model.model.embed_tokens(ids)
    if architecture.embedding_scale != 1.0 and not architecture.embedding_is_scaled:
        hidden = hidden * architecture.embedding_scale
    return hidden


def given_of(model: Any, architecture: Architecture, like: Tensor, positions: Tensor, segments: Tensor) -> Given:
    """What the layers share in a pass over tokens at `positions`, [R, T]. like: in the dtype of the model; segments:
    [R, 1, T, 2], to which positions are added if a layer has a window."""
    if architecture.window is not None and segments.shape[-1] == 2:
        segments = torch.cat((segments, positions[:, None, :, None].to(segments.dtype)), dim=-1)
    ropes = {layer.rope_name: layer.rope for layer in architecture.layers if layer.rope is not None}
    rotary = model.model.rotary_emb
    angles = {name: torch.stack(rotary(like, positions, *([name] if name else []))) for name in ropes}
    growing = next((rope for rope in ropes.values() if rope.query_growth), None)
    if growing is None:
        return Given(segments, angles)
    first = growing.scaling["original_max_position_embeddings"]
    return Given(segments, angles, 1 + growing.query_growth * torch.log(1 + torch.floor(positions / first)))


class Stack:
    """The layers, run in order."""

    def __init__(self, layers: Sequence[LeanLayer]) -> None:
        self._layers = list(layers)

    def matrices(self) -> list[nn.Parameter]:
        """The trained matrices, layer by layer; empty while the adapter is disabled."""
        return [matrix for layer in self._layers for matrix in layer.matrices()]

    def forward(self, given: Given, hidden: Tensor, inputs: Inputs | None = None, keep: Keep | None = None) -> Tensor:
        """[R, T, H] to [R, T, H]. inputs: collects each layer's input for `backward`, rounded to the dtype of `hidden`.
        That rounding affects only the gradient of the layer itself."""
        stream = hidden.to(stream_dtype(hidden.dtype))
        for number, layer in enumerate(self._layers):
            if inputs is not None:
                inputs.append(stream.to(hidden.dtype))
            stream = layer.run(given, stream) if keep is None else layer.run(given, stream, keep=partial(keep, number))
        return stream

    def backward(self, grad: Tensor, given: Given, inputs: Inputs) -> list[Tensor]:
        """Gradients of `matrices`, given the gradient of the result. Empties `inputs`."""
        found: list[list[Tensor]] = []
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            with torch.enable_grad():
                # Not the parameters: autograd ties those to the stream that first used them, which a graph forbids.
                leaves = [matrix.detach().requires_grad_() for matrix in layer.matrices()]
                hidden = inputs.pop().detach().to(grad.dtype).requires_grad_(number > 0)  # nothing below layer 0 learns
                wanted = [*leaves, hidden] if number else leaves
                each = list(torch.autograd.grad(layer.run(given, hidden, leaves), wanted, grad))
            if number:
                grad = each.pop()
            found.append(each)
        return [one for each in reversed(found) for one in each]


class Plain:
    """Launches kernels one by one."""

    def __init__(self, stack: Stack, *, offloads_inputs: bool = False) -> None:
        """offloads_inputs: the layers' inputs wait in host memory."""
        self.stack, self._offloads = stack, offloads_inputs

    def score(self, given: Given, hidden: Tensor) -> Tensor:
        return self.stack.forward(given, hidden)

    def learn(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        inputs: Inputs = HostInputs(hidden.device) if self._offloads else list[Tensor]()
        out = self.stack.forward(given, hidden, inputs)
        return lambda grad: self.stack.backward(grad, given, inputs), out


class _Pass(torch.autograd.Function):
    """A pass with gradients."""

    @staticmethod
    def forward(ctx: Any, runner: Runner, given: Given, hidden: Tensor, *_: Tensor) -> Tensor:
        ctx.learnt, out = runner.learn(given, hidden)
        found: Tensor = out
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None, None, *ctx.learnt(grad)
