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

from profiles.shapes import shape_of
from workers.models import quantized
from workers.models.adapters import ADAPTER
from workers.models.fused_layers import stream_of
from workers.models.nf4 import levels


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
            torch.cat(_biases(self.modules), out=self.bias)
        if self.adapters is None:
            return
        begin, rank = 0, self.adapters.rank
        for number, (module, end) in enumerate(zip(self.modules, self.ends, strict=True)):
            if (found := pair_of(module)) is not None:
                self.adapters.a[number * rank : (number + 1) * rank].copy_(found[0])
                self.adapters.b[:, begin:end].copy_(found[1].T)
            begin = end


@dataclass
class Layer:
    """One decoder layer."""

    first_norm: Tensor
    qkv: Projection
    out: Projection
    second_norm: Tensor
    gate_up: Projection
    down: Projection


class Weights:
    """Everything that a decode step reads of a model."""

    def __init__(self, model: Any) -> None:
        decoder, shape = model.model, shape_of(model.config.to_dict())
        self.embedding: Tensor = decoder.embed_tokens.weight
        self.head: Tensor = model.lm_head.weight
        self.norm: Tensor = decoder.norm.weight
        self.eps = float(decoder.norm.variance_epsilon)
        self.heads, self.key_heads, self.head_dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.layers = [
            Layer(
                layer.input_layernorm.weight,
                projection(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                projection(layer.self_attn.o_proj),
                layer.post_attention_layernorm.weight,
                projection(layer.mlp.gate_proj, layer.mlp.up_proj),
                projection(layer.mlp.down_proj),
            )
            for layer in decoder.layers
        ]
        self.dtype = self.embedding.dtype
        self.stream = stream_of(model)
        """Dtype of the residual stream."""

    def projections(self) -> Iterator[Projection]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    def refresh(self) -> None:
        """Call it after the trainer has changed trained weights."""
        for each in self.projections():
            each.refresh()

    def addresses(self) -> tuple[int, ...]:
        """Addresses of all tensors. Graphs are valid while these stay the same."""
        tensors = [self.embedding, self.head, self.norm]
        for layer in self.layers:
            tensors += [layer.first_norm, layer.second_norm]
        for each in self.projections():
            tensors += [matrix.data for matrix in each.matrices]
        return tuple(tensor.data_ptr() for tensor in tensors)


def pair_of(module: Any) -> tuple[Tensor, Tensor] | None:
    """A [rank, K] and B [N, rank] of a linear module's adapter, by peft's names; None if it has none."""
    if not hasattr(module, "lora_A"):
        return None
    return module.lora_A[ADAPTER].weight.detach(), module.lora_B[ADAPTER].weight.detach()


def projection(*modules: Any) -> Projection:
    """Linear modules, with or without adapters, as one projection. `refresh` fills its buffers."""
    bases = [getattr(module, "base_layer", module) for module in modules]
    matrices = [_matrix(base) for base in bases]
    bias = None if bases[0].bias is None else torch.cat(_biases(modules))
    pairs = [pair for module in modules if (pair := pair_of(module)) is not None]
    if not pairs:
        return Projection(modules, matrices, bias, None)
    rank, like = pairs[0][0].shape[0], pairs[0][0]
    how: dict[str, Any] = {"dtype": computed_in(like.device), "device": like.device}
    scale = next(module.scaling[ADAPTER] for module in modules if hasattr(module, "scaling"))
    total = sum(matrix.shape[0] for matrix in matrices)
    a, b = torch.zeros(len(modules) * rank, like.shape[1], **how), torch.zeros(rank, total, **how)
    return Projection(modules, matrices, bias, Adapters(a, b, rank, float(scale)))


def _biases(modules: Sequence[Any]) -> list[Tensor]:
    return [getattr(module, "base_layer", module).bias.detach() for module in modules]


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
