"""What a decode step reads of the trainer's model: its weights without copying; biases, and adapters in bfloat16.

The next rollout sees an optimiser step on weights at once. Biases are stored side by side here, and the trainer's
adapters are float32, so `Weights.refresh` copies both into fixed buffers; captured graphs stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from profiles.description import Architecture, Rope
from profiles.description import Layer as Described
from profiles.shapes import Shape, shape_of
from workers.models import quantized
from workers.models.adapters import ADAPTER
from workers.models.fused_layers import stream_of
from workers.models.nf4 import levels
from workers.models.plain import described


@dataclass
class Matrix:
    """One weight, [N, K]. data: bfloat16 (float32 on a CPU), or NF4 codes, two per byte, with absmax: [N K / 64]."""

    data: Tensor
    absmax: Tensor | None
    shape: tuple[int, int]

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight as [N, K] in `dtype`, dequantised in the same way as in training."""
        if self.absmax is None:
            return self.data.to(dtype)
        codes = self.data.reshape(-1)
        values = levels().to(codes.device)[torch.stack((codes >> 4, codes & 15), 1).long()]  # [N K / 2, 2]
        return (values.reshape(-1, 64) * self.absmax[:, None]).to(dtype).reshape(self.shape)

    def halves(self) -> tuple[Matrix, Matrix]:
        """The upper and the lower half of the rows, over the same memory."""
        rows, columns = self.shape[0] // 2, self.shape[1]
        scales = (None, None) if self.absmax is None else self.absmax.chunk(2)
        first, second = (
            Matrix(one, scale, (rows, columns)) for one, scale in zip(self.data.chunk(2), scales, strict=True)
        )
        return first, second


@dataclass
class Adapters:
    """The adapters of a projection's matrices, in order. A matrix without an adapter gets zeros.

    a: [matrices * rank, K]; b: [rank, N], each column from its own matrix's B.
    """

    a: Tensor
    b: Tensor
    rank: int
    scale: float


@dataclass
class Projection:
    """Matrices that read the same input, side by side. bias: [N]."""

    modules: Sequence[nn.Module]
    matrices: Sequence[Matrix]
    bias: Tensor | None
    adapters: Adapters | None

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each matrix's columns end."""
        ends, total = [], 0
        for matrix in self.matrices:
            total += matrix.shape[0]
            ends.append(total)
        return tuple(ends)

    def refresh(self) -> None:
        """Copy the trainer's biases, and its adapters rounded, into the buffers that a step reads."""
        if self.bias is not None:
            torch.cat(_biases(self.modules, self.matrices), out=self.bias)
        if self.adapters is None:
            return
        begin, rank = 0, self.adapters.rank
        for number, (module, end) in enumerate(zip(self.modules, self.ends, strict=True)):
            if (found := pair_of(module)) is not None:
                self.adapters.a[number * rank : (number + 1) * rank].copy_(found[0])
                self.adapters.b[:, begin:end].copy_(found[1].T)
            begin = end


@dataclass(frozen=True)
class Sum:
    """How a projection's result joins the residual stream, and how the sum is normed.

    stream: dtype of the residual stream; dtype: of its norm. after: weight of a norm of the result; None: it has none.
    scale: of what is added; factor: [1], of the sum.
    """

    eps: float
    stream: torch.dtype
    dtype: torch.dtype
    plus_one: bool = False
    after: Tensor | None = None
    scale: float = 1.0
    factor: Tensor | None = None


@dataclass(frozen=True)
class Heads:
    """What becomes of queries, keys and values before attention, and how that weighs them.

    of_queries, of_keys: weights of their norms, for each head [width], or for all together [heads * width]. window: 0
    for none; cap: 0.0 for none.
    """

    queries: int
    keys: int
    width: int
    rope: Rope | None
    rope_name: str
    window: int
    scale: float
    cap: float
    of_queries: Tensor | None = None
    of_keys: Tensor | None = None
    norm: str = ""
    has_value_norm: bool = False
    values_are_keys: bool = False

    @property
    def growth(self) -> tuple[float, float]:
        """How queries grow, and the original context; zero growth if they do not."""
        if self.rope is None or not self.rope.query_growth:
            return 0.0, 1.0
        return self.rope.query_growth, float(self.rope.scaling["original_max_position_embeddings"])


@dataclass
class Gate:
    """The MLP's activation. slopes: of xIELU, [4] float32, which `refresh` fills."""

    name: str
    has_gate: bool
    module: Any = None
    slopes: Tensor | None = None

    def refresh(self) -> None:
        if self.slopes is not None:
            one = self.module
            self.slopes[0] = softplus(one.alpha_p.detach().float())[0]
            self.slopes[1] = one.beta.float() + softplus(one.alpha_n.detach().float())[0]
            self.slopes[2], self.slopes[3] = one.beta.float(), one.eps.float()


@dataclass
class Layer:
    """One decoder layer. A norm that it does not have is None."""

    before_attention: Tensor | None
    qkv: Projection
    heads: Heads
    out: Projection
    of_attention: Sum
    before_mlp: Tensor | None
    gate_up: Projection
    gate: Gate
    down: Projection
    of_mlp: Sum


class Weights:
    """Everything that a decode step reads of a model."""

    def __init__(self, model: Any) -> None:
        decoder, shape, found = model.model, shape_of(model.config.to_dict()), described(model)
        assert found is not None
        self.described: Architecture = found
        self.embedding: Tensor = decoder.embed_tokens.weight
        self.head: Tensor = model.lm_head.weight
        self.norm: Tensor = decoder.norm.weight
        self.dtype = self.embedding.dtype
        self.stream = stream_of(model)
        """Dtype of the residual stream."""
        self.embedding_scale = found.embedding_scale
        if found.embedding_is_scaled:
            self.embedding_scale = float(torch.tensor(found.embedding_scale, dtype=self.dtype))
        self.plain = Sum(found.norm.eps, self.stream, self.dtype, found.norm.plus_one)
        """Of what no projection is added to."""
        self.layers = [self._layer(layer, one, shape) for layer, one in zip(decoder.layers, found.layers, strict=True)]

    def _layer(self, layer: Any, one: Described, shape: Shape) -> Layer:
        names, attention, mlp = self.described.norm.names, layer.self_attn, layer.mlp
        factor = layer.layer_scalar if self.described.layer_scale else None
        gate = Gate(self.described.activation, self.described.has_gate)
        if gate.name == "xielu":
            gate.module, gate.slopes = mlp.act_fn, torch.zeros(4, device=self.embedding.device)
        of_up = [name for name in self.described.linear_names[:-1] if hasattr(mlp, name)]
        of_qkv = [name for name in self.described.linear_names if getattr(attention, name, None) is not None]
        return Layer(
            _weight(layer, names.before_attention),
            projection(*(getattr(attention, name) for name in of_qkv if name != "o_proj")),
            self._heads(attention, one, shape),
            projection(attention.o_proj),
            self._sum(_weight(layer, names.after_attention), None),
            _weight(layer, names.before_mlp),
            projection(*(getattr(mlp, name) for name in of_up)),
            gate,
            projection(mlp.down_proj),
            self._sum(_weight(layer, names.after_mlp), factor),
        )

    def _sum(self, after: Tensor | None, factor: Tensor | None) -> Sum:
        one = self.described
        return Sum(one.norm.eps, self.stream, self.dtype, one.norm.plus_one, after, one.residual_scale, factor)

    def _heads(self, attention: Any, layer: Described, shape: Shape) -> Heads:
        one, width = self.described, layer.head_dim or shape.head_dim
        return Heads(
            shape.num_attention_heads,
            layer.key_heads or shape.num_key_value_heads,
            width,
            layer.rope,
            layer.rope_name,
            layer.window or 0,
            width**-0.5 if one.attention_scale is None else one.attention_scale,
            one.attention_cap or 0.0,
            _weight(attention, "q_norm" if one.qk_norm else ""),
            _weight(attention, "k_norm" if one.qk_norm else ""),
            one.qk_norm,
            one.v_norm,
            layer.values_are_keys,
        )

    def projections(self) -> Iterator[Projection]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    @property
    def caches(self) -> list[tuple[int, int]]:
        """Heads and width of the keys that each layer caches."""
        return [(layer.heads.keys, layer.heads.width) for layer in self.layers]

    def refresh(self) -> None:
        """Call it after the trainer has changed trained weights."""
        for each in self.projections():
            each.refresh()
        for layer in self.layers:
            layer.gate.refresh()

    def addresses(self) -> tuple[int, ...]:
        """Addresses of all tensors. Graphs are valid while these stay the same."""
        tensors: list[Tensor | None] = [self.embedding, self.head, self.norm]
        for layer in self.layers:
            tensors += [layer.before_attention, layer.of_attention.after, layer.before_mlp, layer.of_mlp.after]
            tensors += [layer.heads.of_queries, layer.heads.of_keys, layer.of_mlp.factor]
        for each in self.projections():
            tensors += [matrix.data for matrix in each.matrices]
        return tuple(tensor.data_ptr() for tensor in tensors if tensor is not None)


def _weight(module: Any, name: str) -> Tensor | None:
    return getattr(module, name).weight if name else None


def pair_of(module: Any) -> tuple[Tensor, Tensor] | None:
    """A [rank, K] and B [N, rank] of a linear module's adapter, by peft's names; None if it has none."""
    if not hasattr(module, "lora_A"):
        return None
    return module.lora_A[ADAPTER].weight.detach(), module.lora_B[ADAPTER].weight.detach()


def projection(*modules: Any) -> Projection:
    """Linear modules, with or without adapters, as one projection. `refresh` fills its buffers."""
    bases = [getattr(module, "base_layer", module) for module in modules]
    matrices = [_matrix(base) for base in bases]
    has_bias = any(base.bias is not None for base in bases)
    bias = torch.cat(_biases(modules, matrices)) if has_bias else None
    pairs = [pair for module in modules if (pair := pair_of(module)) is not None]
    if not pairs:
        return Projection(modules, matrices, bias, None)
    rank, like = pairs[0][0].shape[0], pairs[0][0]
    how: dict[str, Any] = {"dtype": computed_in(like.device), "device": like.device}
    scale = next(module.scaling[ADAPTER] for module in modules if hasattr(module, "scaling"))
    total = sum(matrix.shape[0] for matrix in matrices)
    a, b = torch.zeros(len(modules) * rank, like.shape[1], **how), torch.zeros(rank, total, **how)
    return Projection(modules, matrices, bias, Adapters(a, b, rank, float(scale)))


def _biases(modules: Sequence[Any], matrices: Sequence[Matrix]) -> list[Tensor]:
    """Those of all modules; zeros for one that has none."""
    bases = [getattr(module, "base_layer", module) for module in modules]
    like = next(base.bias for base in bases if base.bias is not None).detach()
    return [
        like.new_zeros(matrix.shape[0]) if base.bias is None else base.bias.detach()
        for base, matrix in zip(bases, matrices, strict=True)
    ]


def computed_in(device: torch.device) -> torch.dtype:
    """Dtype of the adapters' copies: what the kernels multiply in; without kernels, the dtype of everything."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _matrix(base: Any) -> Matrix:
    weight = base.weight
    state = getattr(weight, "quant_state", None)
    if state is None:
        return Matrix(weight.detach(), None, (weight.shape[0], weight.shape[1]))
    if not quantized.is_known(base):
        raise ValueError(f"weights of {state.quant_type} in blocks of {state.blocksize} are not NF4 in blocks of 64")
    return Matrix(weight.data.reshape(-1), quantized.scales_of(base), (state.shape[0], state.shape[1]))
