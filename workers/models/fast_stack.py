"""All decoder layers of a model as one autograd node. For the gradient it keeps the layers' inputs, and of the last
layers all that they computed, if there is memory for that.

It takes the place of the model's own pass, with gradient checkpointing, where all layers are fast (`fast_layers.py`).

Gradients of an adapter are small: they add up in one buffer that stays (`Sums`). Those of all weights would be a second
copy of the model. So each layer's are given on as soon as they are there (`give`), to the optimiser's hooks if it has
some, which add them to float32 sums that live as long as an update; nothing but one layer's is held in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from profiles.description import Architecture
from workers.models.attention import of_one_pass
from workers.models.fast_layers import Given, LeanLayer, normed
from workers.models.fused_layers import stream_dtype
from workers.models.host_inputs import HostInputs
from workers.models.plain import described

ALIGNED = 64
"""Numbers by which the gradients of two matrices are at least apart."""


class Inputs(Protocol):
    """A stack of the layers' inputs."""

    def append(self, one: Tensor, /) -> None: ...

    def pop(self) -> Tensor: ...


Learnt = Callable[[Tensor], tuple[Tensor | None, Sequence[Tensor | None]]]
"""Gets the gradient of a pass's result, and adds the gradients of `Stack.matrices` to their `grad`. Returns the
gradient of the embeddings if they are trained, then those of the matrices that autograd is to add instead: hooks on an
adapter's wait for it. Call it once at most."""


class Runner(Protocol):
    """How passes through a stack run: launched, or as graphs."""

    stack: Stack

    def score(self, given: Given, hidden: Tensor) -> Tensor:
        """Embeddings, [R, T, H], to the residual stream, [R, T, H] in its `stream_dtype`; without gradient."""

    def learn(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        """The same result, with a function that adds the gradients."""


def hidden_of(model: Any, ids: Tensor, positions: Tensor, segments: Tensor) -> Tensor | None:
    """Final hidden states, [R, T, H]; None if `model` has no stack."""
    runner: Runner | None = getattr(model, "fast_runner", None)
    if runner is None:
        return None
    architecture = described(model)
    assert architecture is not None
    hidden = embedded(model, architecture, ids)
    given = replace(given_of(model, architecture, hidden, positions, segments), in_fp8=runner.stack.in_fp8)
    if torch.is_grad_enabled():
        apply: Any = _Pass.apply
        # Where all weights are trained, `give` does what autograd does with a gradient of a parameter.
        out = apply(runner, given, hidden, *(() if runner.stack.learns_all else runner.stack.matrices()))
    else:
        out = runner.score(given, hidden)
    return normed(model.model.norm, out, architecture)


Keep = Callable[[int, Tensor, Tensor], None]
"""Gets the number of a layer, and its keys and values, [R, key heads, T, D], as a cache holds them."""


def has_stack(model: Any) -> bool:
    """Whether `read` can read prompts with `model`."""
    return getattr(model, "fast_runner", None) is not None


def read(model: Any, ids: Tensor, angles: Mapping[str, Tensor], keep: Keep) -> None:
    """Pass rows that begin at the first position through all layers for the sake of their keys and values.

    ids: [R, T]; angles: of all T positions, as in `Given`. Raises AttributeError without `has_stack`."""
    architecture, stack = described(model), model.fast_runner.stack
    assert architecture is not None
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    # All tokens of one segment: each sees those up to its own place.
    segments = torch.zeros(*ids.shape, 2, dtype=torch.int32, device=ids.device)[:, None]
    given = _given(architecture, angles, positions, segments)
    stack.forward(given, embedded(model, architecture, ids), keep=keep)


def embedded(model: Any, architecture: Architecture, ids: Tensor) -> Tensor:
    """What the first layer reads, [R, T, H] in the dtype of the model."""
    hidden: Tensor = model.model.embed_tokens(ids)
    if architecture.embedding_scale != 1.0 and not architecture.embedding_is_scaled:
        hidden = hidden * architecture.embedding_scale
    return hidden


def given_of(model: Any, architecture: Architecture, like: Tensor, positions: Tensor, segments: Tensor) -> Given:
    """What the layers share in a pass over tokens at `positions`, [R, T]. like: in the dtype of the model; segments:
    [R, 1, T, 2], to which positions are added if a layer has a window."""
    names = dict.fromkeys(layer.rope_name for layer in architecture.layers if layer.rope is not None)
    rotary = model.model.rotary_emb
    angles = {name: torch.stack(rotary(like, positions, *([name] if name else []))) for name in names}
    return _given(architecture, angles, positions, segments)


def _given(architecture: Architecture, angles: Mapping[str, Tensor], positions: Tensor, segments: Tensor) -> Given:
    if architecture.window is not None and segments.shape[-1] == 2:
        segments = torch.cat((segments, positions[:, None, :, None].to(segments.dtype)), dim=-1)
    segments = of_one_pass(segments)
    ropes = (layer.rope for layer in architecture.layers)
    growing = next((rope for rope in ropes if rope is not None and rope.query_growth), None)
    if growing is None:
        return Given(segments, angles)
    first = growing.scaling["original_max_position_embeddings"]
    return Given(segments, angles, 1 + growing.query_growth * torch.log(1 + torch.floor(positions / first)))


@dataclass(frozen=True)
class Ran:
    """A layer that ran with gradients. wanted: the stand-ins for its matrices, then its input, if anything below the
    layer learns."""

    wanted: list[Tensor]
    out: Tensor


class Stack:
    """The layers, run in order."""

    def __init__(self, layers: Sequence[LeanLayer], kept_tokens: int = 0) -> None:
        """kept_tokens: a pass keeps the activations of its last layers, as many as have this many tokens together; the
        others it computes again for the gradient. It depends on nothing else, so equal passes give equal bits."""
        self._layers, self._kept_tokens = list(layers), kept_tokens
        self.in_fp8 = False
        """Whether passes that score or learn compute products with frozen weights in 8 bits. Those that read prompts
        for a rollout never do: engines draw with the weights as they are."""
        self._sums: Sums | None = None
        self.learns_all = all(layer.learns_all for layer in layers)
        """Whether all weights are trained, and with them the embeddings."""

    def __len__(self) -> int:
        return len(self._layers)

    def matrices(self) -> list[nn.Parameter]:
        """The trained parameters, layer by layer; empty while the adapter is disabled."""
        return [matrix for layer in self._layers for matrix in layer.matrices()]

    def matrices_of(self, number: int) -> list[nn.Parameter]:
        """Those of a layer."""
        return self._layers[number].matrices()

    def sums(self) -> Sums:
        """Where the gradients of `matrices` add up: the same until these move."""
        matrices = self.matrices()
        addresses = tuple(matrix.data_ptr() for matrix in matrices)
        if self._sums is None or self._sums.addresses != addresses:
            self._sums = Sums(matrices, addresses)
        return self._sums

    def forward(self, given: Given, hidden: Tensor, tape: Tape | None = None, keep: Keep | None = None) -> Tensor:
        """[R, T, H] to [R, T, H]. tape: collects for `backward` what ran with gradients, and before these the other
        layers' inputs, rounded to the dtype of `hidden`. That rounding affects only the gradient of the layer
        itself."""
        stream = hidden.to(stream_dtype(hidden.dtype))
        kept = 0 if tape is None else self._kept_tokens // (hidden.shape[0] * hidden.shape[1])
        for number, layer in enumerate(self._layers):
            if tape is not None and number >= len(self._layers) - kept:
                tape.ran.append(self._run(number, given, stream))
                stream = tape.ran[-1].out.detach()
                continue
            if tape is not None:
                tape.inputs.append(stream.to(hidden.dtype))
            stream = layer.run(given, stream) if keep is None else layer.run(given, stream, keep=partial(keep, number))
        return stream

    def _run(self, number: int, given: Given, hidden: Tensor) -> Ran:
        layer = self._layers[number]
        with torch.enable_grad():
            # Not the parameters: autograd ties those to the stream that first used them, which a graph forbids.
            leaves = {matrix: matrix.detach().requires_grad_() for matrix in layer.matrices()}
            is_wanted = number > 0 or self.learns_all  # an adapter's first layer has frozen embeddings below it
            hidden = hidden.detach().requires_grad_(is_wanted)
            wanted = [*leaves.values(), *([hidden] if is_wanted else [])]
            return Ran(wanted, layer.run(given, hidden, leaves))

    def backward_of(self, number: int, grad: Tensor, given: Given, tape: Tape) -> tuple[list[Tensor], Tensor]:
        """A layer's gradients, and that of its input; `grad` itself if nothing below it learns. grad: of its result.
        Call it for the last layer first: it takes what `tape` has of each."""
        ran = tape.ran.pop() if tape.ran else self._run(number, given, tape.inputs.pop().to(grad.dtype))
        each = list(torch.autograd.grad(ran.out, ran.wanted, grad))
        del ran  # with what it kept
        return (each, each.pop()) if number > 0 or self.learns_all else (each, grad)

    def backward(self, grad: Tensor, given: Given, tape: Tape) -> list[Tensor]:
        """Gradients of `matrices`, given the gradient of the result. Empties `tape`."""
        found: list[list[Tensor]] = []
        for number in reversed(range(len(self))):
            each, grad = self.backward_of(number, grad, given, tape)
            found.append(each)
        return [one for each in reversed(found) for one in each]


@dataclass
class Tape:
    """What a pass leaves for its gradient."""

    inputs: Inputs
    ran: list[Ran] = field(default_factory=list)


class Sums:
    """The gradients of several passes, end to end in one buffer, of which the `grad` of each matrix is a view.

    Autograd would add to each of some 400 matrices by itself.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], addresses: tuple[int, ...]) -> None:
        self._matrices, self.addresses = matrices, addresses
        # Each begins where a kernel of an optimiser may expect it: those of some libraries read 16 bytes at a time.
        rooms = [-(-one.numel() // ALIGNED) * ALIGNED for one in matrices]
        self.flat = matrices[0].detach().new_zeros(sum(rooms))
        pairs = zip(torch.split(self.flat, rooms), matrices, strict=True)
        self.parts = [part[: one.numel()].view(one.shape) for part, one in pairs]

    def added(self, add: Callable[[], object]) -> Sequence[Tensor | None]:
        """Calls `add`, which adds a pass's gradients to `parts`. Returns what `Learnt` does."""
        if any(matrix._post_accumulate_grad_hooks for matrix in self._matrices):
            self.flat.zero_()
            add()
            return [part.clone() for part in self.parts]
        self._take_over()
        add()
        return [None] * len(self._matrices)

    def _take_over(self) -> None:
        """Make `parts` the gradients, with the values that these have now."""
        now = [matrix.grad for matrix in self._matrices]
        is_first = all(one is None for one in now)
        if is_first:
            self.flat.zero_()
        for matrix, part, one in zip(self._matrices, self.parts, now, strict=True):
            if one is part:
                continue
            if one is not None:
                part.copy_(one)
            elif not is_first:
                part.zero_()
            matrix.grad = part


def give(matrices: Sequence[nn.Parameter], gradients: Iterable[Tensor]) -> None:
    """Do with gradients what autograd does: add each to the one that is there, or make it that; then call the hooks, by
    which an optimiser may take it."""
    for matrix, gradient in zip(matrices, gradients, strict=True):
        matrix.grad = gradient if matrix.grad is None else matrix.grad.add_(gradient)
        for hook in tuple((matrix._post_accumulate_grad_hooks or {}).values()):
            hook(matrix)


class Plain:
    """Launches kernels one by one."""

    def __init__(self, stack: Stack, *, offloads_inputs: bool = False) -> None:
        """offloads_inputs: the layers' inputs wait in host memory."""
        self.stack, self._offloads = stack, offloads_inputs

    def score(self, given: Given, hidden: Tensor) -> Tensor:
        return self.stack.forward(given, hidden)

    def learn(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        tape = Tape(HostInputs(hidden.device) if self._offloads else list[Tensor]())
        out = self.stack.forward(given, hidden, tape)

        def of_adapter(grad: Tensor) -> tuple[None, Sequence[Tensor | None]]:
            found, sums = self.stack.backward(grad, given, tape), self.stack.sums()
            return None, sums.added(lambda: torch._foreach_add_(sums.parts, found))

        def of_all(grad: Tensor) -> tuple[Tensor, Sequence[None]]:
            for number in reversed(range(len(self.stack))):
                found, grad = self.stack.backward_of(number, grad, given, tape)
                give(self.stack.matrices_of(number), found)
            return grad.to(hidden.dtype), ()

        return of_all if self.stack.learns_all else of_adapter, out


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
        of_hidden, of_matrices = ctx.learnt(grad)
        return None, None, of_hidden, *of_matrices
