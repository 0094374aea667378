"""Passes of a frozen decoder layer with our own adapters: the same numbers as its modules, from fewer kernel launches.

A training pass over a few rollouts waits for Python, not for the GPU. So the layer is written out here: linear layers
that read the same input form one autograd node together with their adapters, their input gradients are summed in place,
and a 4-bit weight is dequantised for one product and then dropped. The modules keep their places, names and weights, so
engines, checkpoints and optimisers are unaffected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from workers.models import quantized
from workers.models.attention import attend
from workers.models.fused_layers import gated, normed, rotary_module, supports
from workers.models.lora import LoraLinear
from workers.models.plain import described


def fast_layers(model: Any) -> list[LeanLayer] | None:
    """The layers, if everything in them is frozen except our own adapters; otherwise None. Call it after the adapters
    are injected."""
    if supports(described(model)) or model.config._attn_implementation != "sdpa":
        return None
    layers = list(model.model.layers)
    return [LeanLayer(layer) for layer in layers] if all(_fits(layer) for layer in layers) else None


def _fits(layer: Any) -> bool:
    adapted = [module for module in layer.modules() if isinstance(module, LoraLinear)]
    trained = sum(parameter.requires_grad for parameter in layer.parameters())
    modules = (*layer.self_attn.children(), *layer.mlp.children())
    bases = [getattr(module, "base_layer", module) for module in modules if hasattr(module, "in_features")]
    return bool(adapted) and trained == 2 * len(adapted) and all(quantized.is_known(base) for base in bases)


@dataclass(frozen=True)
class Given:
    """The inputs that all layers share. segments: [R, 1, T, 2], as in `packing.Pack`; cos, sin: [R or 1, T, D]."""

    segments: Tensor
    cos: Tensor
    sin: Tensor


class LeanLayer:
    """A decoder layer's computation over whole sequences. Rollouts with a cache still call the layer itself."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        attention, mlp = layer.self_attn, layer.mlp
        self._rotary = rotary_module(attention)
        self._qkv, self._out = Joint(attention.q_proj, attention.k_proj, attention.v_proj), Joint(attention.o_proj)
        self._gate_up, self._down = Joint(mlp.gate_proj, mlp.up_proj), Joint(mlp.down_proj)

    def matrices(self) -> list[nn.Parameter]:
        """The trained matrices."""
        joints = (self._qkv, self._out, self._gate_up, self._down)
        return [one for joint in joints for number in joint.adapted for one in joint.modules[number].matrices]

    def run(self, given: Given, hidden: Tensor, leaves: Sequence[Tensor] = ()) -> Tensor:
        """hidden: the residual stream, [R, T, H] in its `stream_dtype`; returns the same. leaves: stand-ins for
        `matrices` that receive the gradients; their values are not read."""
        attention, mlp, of = self.layer.self_attn, self.layer.mlp, iter(leaves)
        heads = (*hidden.shape[:-1], -1, attention.head_dim)
        q, k, v = (one.view(heads).transpose(1, 2) for one in self._qkv(normed(self.layer.input_layernorm, hidden), of))
        q, k = self._rotary.apply_rotary_pos_emb(q, k, given.cos, given.sin)
        seen, _ = attend(attention, q, k, v, given.segments, dropout=0.0, scaling=attention.scaling)
        hidden = hidden + self._out(seen.flatten(-2), of)[0]
        gate, up = self._gate_up(normed(self.layer.post_attention_layernorm, hidden), of)
        return hidden + self._down(gated(mlp, gate, up), of)[0]


class Joint:
    """Linear modules that read the same x, with or without adapters: [..., in] to [..., out_i] each.

    Their A matrices are stacked, so that one product serves all of them.
    """

    def __init__(self, *modules: Any) -> None:
        self.modules = modules
        self.bases = [getattr(module, "base_layer", module) for module in modules]
        self._adapted = [number for number, module in enumerate(modules) if isinstance(module, LoraLinear)]
        self._kept: tuple[Any, Tensor] | None = None

    def __call__(self, x: Tensor, leaves: Iterator[Tensor]) -> Sequence[Tensor]:
        """leaves: starts with the stand-ins for the matrices of the adapted modules, which are consumed."""
        rows = x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled():
            apply: Any = _Products.apply
            outs = apply(rows, self, *islice(leaves, 2 * len(self.adapted)))
        else:
            outs = self.forward(rows)[0]
        return [out.view(*x.shape[:-1], -1) for out in outs]

    @property
    def adapted(self) -> list[int]:
        """Indices of the modules whose adapters are enabled."""
        return [number for number in self._adapted if self.modules[number].is_enabled]

    @property
    def scale(self) -> float:
        """The scale of every adapter; all share one."""
        found: float = self.modules[self._adapted[0]].scale
        return found

    def forward(self, rows: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """rows: [N, in]. Returns the products, [N, out_i], and scale * x A^T of the adapted modules, [N, sum of
        ranks]."""
        bases, kind = self.bases, rows.dtype
        outs = [linear(rows, quantized.weight_of(base, kind), base.bias) for base in bases]
        if not (adapted := self.adapted):
            return outs, None
        inner = (rows @ self.a(kind).t()).mul_(self.scale)
        for number, part in zip(adapted, torch.split(inner, self.ranks, dim=1), strict=True):
            outs[number].addmm_(part, self.modules[number].cast(kind)[1].t())
        return outs, inner

    def a(self, dtype: torch.dtype) -> Tensor:
        """The A matrices of the adapted modules, stacked: [sum of ranks, in]."""
        adapted = [self.modules[number] for number in self.adapted]
        if len(adapted) == 1:
            alone: Tensor = adapted[0].cast(dtype)[0]
            return alone
        state = dtype, [module.state for module in adapted]
        if self._kept is None or self._kept[0] != state:
            # A rollout may be the first caller, and autograd cannot use tensors made in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, torch.cat([module.cast(dtype)[0] for module in adapted])
        return self._kept[1]

    @property
    def ranks(self) -> list[int]:
        """The rank of each adapted module: how the columns of [N, sum of ranks] and the rows of `a` are split."""
        return [self.modules[number].matrices[0].shape[0] for number in self.adapted]


class _Products(torch.autograd.Function):
    """base(x) + scale * (x A^T) B^T of modules that read the same x; gradients for x and for the float32 matrices."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, joint: Joint, *matrices: Tensor) -> tuple[Tensor, ...]:
        outs, inner = joint.forward(rows)
        ctx.save_for_backward(rows, inner)
        ctx.joint = joint
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, inner = ctx.saved_tensors
        joint: Joint = ctx.joint
        of_rows: Tensor | None = None
        if ctx.needs_input_grad[0]:
            for base, grad in zip(joint.bases, grads, strict=True):
                weight = quantized.weight_of(base, grad.dtype)
                of_rows = grad @ weight if of_rows is None else of_rows.addmm_(grad, weight)
                del weight  # free it before the next one is dequantised
        if inner is None:
            return of_rows, None
        of_inner, of_b = torch.empty_like(inner), []
        adapted, ranks = joint.adapted, joint.ranks
        for number, part, of_part in zip(
            adapted, *(torch.split(one, ranks, 1) for one in (inner, of_inner)), strict=True
        ):
            module, grad = joint.modules[number], grads[number]
            torch.mm(grad, module.cast(grad.dtype)[1], out=of_part)
            of_b.append((grad.t() @ part).to(module.matrices[1].dtype))
        of_inner.mul_(joint.scale)
        if of_rows is not None:
            of_rows.addmm_(of_inner, joint.a(rows.dtype))
        of_a = (of_inner.t() @ rows).to(joint.modules[adapted[0]].matrices[0].dtype)
        pairs = zip(torch.split(of_a, ranks), of_b, strict=True)
        return of_rows, None, *(one for pair in pairs for one in pair)
