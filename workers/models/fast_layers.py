"""Passes of a decoder layer, frozen with our own adapters or trained whole: the same numbers as its modules, from fewer
kernel launches.

A training pass over a few rollouts waits for Python, not for the GPU. So the layer is written out here: linear layers
that read the same input form one autograd node together with their adapters, their input gradients are summed in place,
and a 4-bit weight is dequantised for one product and then dropped. The modules keep their places, names and weights, so
engines, checkpoints and optimisers are unaffected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, rms_norm, softplus

from profiles.description import Architecture
from profiles.description import Layer as Described
from profiles.shapes import Shape, shape_of
from profiles.written_out import supports
from workers.models import fp8, fused_layers, quantized
from workers.models.attention import OWN, attend
from workers.models.fused_layers import ROUNDED, FusedNorm, rotate, stream_dtype
from workers.models.lora import LoraLinear, are_copies_apart
from workers.models.plain import described, reason_of


def fast_layers(model: Any) -> list[LeanLayer] | None:
    """The layers, if everything in them is frozen except our own adapters, or if all of the model is trained; otherwise
    None. Call it after the adapters are injected."""
    found = described(model)
    if supports(found) or reason_of(model) or model.config._attn_implementation not in ("sdpa", OWN):
        return None
    assert found is not None
    layers, shape = list(model.model.layers), shape_of(model.config.to_dict())
    is_trained = all(one.requires_grad for one in model.parameters()) and all(map(_is_plain, layers))
    if not is_trained and not all(map(_is_adapted, layers)):
        return None
    return [LeanLayer(layer, one, found, shape) for layer, one in zip(layers, found.layers, strict=True)]


def _linear_in(layer: Any) -> list[Any]:
    return [one for one in (*layer.self_attn.children(), *layer.mlp.children()) if hasattr(one, "in_features")]


def _is_plain(layer: Any) -> bool:
    return all(type(module) is nn.Linear for module in _linear_in(layer))


def _is_adapted(layer: Any) -> bool:
    adapted = [module for module in layer.modules() if isinstance(module, LoraLinear)]
    trained = sum(parameter.requires_grad for parameter in layer.parameters())
    bases = [getattr(module, "base_layer", module) for module in _linear_in(layer)]
    return bool(adapted) and trained == 2 * len(adapted) and all(quantized.is_known(base) for base in bases)


@dataclass(frozen=True)
class Given:
    """The inputs that all layers share.

    segments: [R, 1, T, 2 or 3], an `attention.of_one_pass`. angles: by the layers' `rope_name`, cosines and
    sines, [2, R or 1, T, D]. growth: what rotated queries are multiplied by, [R or 1, T]; None: by nothing. in_fp8:
    whether products with frozen weights are computed in 8 bits.
    """

    segments: Tensor
    angles: Mapping[str, Tensor]
    growth: Tensor | None = None
    in_fp8: bool = False


Leaves = Mapping[nn.Parameter, Tensor]
"""Trained parameter -> its stand-in, a view of it that receives the gradient. One without a stand-in is read itself."""
Kept = Callable[[Tensor, Tensor], None]


def _drop(key: Tensor, value: Tensor) -> None:
    """Training has no cache."""


class LeanLayer:
    """A decoder layer's computation over whole sequences. Rollouts with a cache still call the layer itself."""

    def __init__(self, layer: Any, one: Described, described: Architecture, shape: Shape) -> None:
        self.layer, self._one, self._described = layer, one, described
        attention, mlp, names = layer.self_attn, layer.mlp, described.linear_names
        self._width = one.head_dim or shape.head_dim
        self._keys = (one.key_heads or shape.num_key_value_heads) * self._width
        self._queries = shape.num_attention_heads * self._width
        self._scale = self._width**-0.5 if described.attention_scale is None else described.attention_scale
        of_qkv = [name for name in names[: names.index("o_proj")] if getattr(attention, name, None) is not None]
        of_up = names[names.index("o_proj") + 1 : -1]
        self._qkv, self._out = Joint(*(getattr(attention, name) for name in of_qkv)), Joint(attention.o_proj)
        self._gate_up, self._down = Joint(*(getattr(mlp, name) for name in of_up)), Joint(mlp.down_proj)
        self._act = getattr(mlp, "act_fn", None) or mlp.activation_fn
        self._slopes: Tensor | None = None
        parameters = list(layer.parameters())
        self.learns_all = all(one.requires_grad for one in parameters)
        """Whether all of its parameters are trained, and none of them is an adapter's."""
        self._parameters = parameters if self.learns_all else []

    def matrices(self) -> list[nn.Parameter]:
        """The trained parameters: those of the adapters that are enabled, or all: matrices, biases and norms."""
        if self.learns_all:
            return self._parameters
        return [one for joint in (self._qkv, self._out, self._gate_up, self._down) for one in joint.trained]

    def run(self, given: Given, hidden: Tensor, of: Leaves | None = None, keep: Kept = _drop) -> Tensor:
        """hidden: the residual stream, [R, T, H] in its `stream_dtype`; returns the same. of: the stand-ins for
        `matrices`. keep: gets keys and values, [R, key heads, T, D], as a cache holds them."""
        names, of, in_fp8 = self._described.norm.names, of or {}, given.in_fp8
        query, key, value = self._prepared(
            self._qkv(self._normed(names.before_attention, hidden, of), of, in_fp8), given, of
        )
        keep(key, value)
        attention = self.layer.self_attn
        seen, _ = attend(attention, query, key, value, given.segments, dropout=0.0, scaling=self._scale)
        hidden = self._added(hidden, self._out(seen.flatten(-2), of, in_fp8)[0], names.after_attention, of)
        up = self._activated(self._gate_up(self._normed(names.before_mlp, hidden, of), of, in_fp8), of)
        hidden = self._added(hidden, self._down(up, of, in_fp8)[0], names.after_mlp, of)
        return hidden * self.layer.layer_scalar if self._described.layer_scale else hidden

    def _normed(self, name: str, stream: Tensor, of: Leaves) -> Tensor:
        """The norm of the residual stream, or itself, in the dtype of the model."""
        if not name:
            return stream.to(getattr(self.layer, self._described.norm.names.after_attention).weight.dtype)
        return normed(getattr(self.layer, name), stream, self._described, of)

    def _added(self, stream: Tensor, part: Tensor, norm: str, of: Leaves) -> Tensor:
        if norm:
            part = normed(getattr(self.layer, norm), part, self._described, of)
        scale = self._described.residual_scale
        return stream + (part if scale == 1.0 else part * scale)

    def _prepared(self, parts: Sequence[Tensor], given: Given, of: Leaves) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [R, their heads, T, D]; the first two are normed and rotated."""
        if len(parts) == 1:
            parts = torch.split(parts[0], [self._queries, self._keys, self._keys], dim=-1)
        query, key, value = parts if len(parts) == 3 else (*parts, parts[1])  # values may be keys
        one, attention = self._described, self.layer.self_attn
        shape = (*query.shape[:-1], -1, self._width)
        rope = self._one.rope
        angles = None if rope is None else given.angles[self._one.rope_name]
        growth = given.growth if rope is not None and rope.query_growth else None
        if one.v_norm:
            value = attention.v_norm(value.view(shape))
        value = value.view(shape).transpose(1, 2)
        is_ours = query.is_cuda and query.dtype in ROUNDED and fused_layers.has_kernels(query.device)
        norm = one.qk_norm
        if norm and (self.learns_all or not is_ours):  # the kernel that rotates has no gradient for their weights
            if norm == "head":
                query, key = query.view(shape), key.view(shape)
            query, key = normed(attention.q_norm, query, one, of), normed(attention.k_norm, key, one, of)
            norm = ""
        query, key = (each.view(shape).transpose(1, 2) for each in (query, key))
        if is_ours:
            return *self._turned(query, key, angles, growth, norm), value
        if rope is not None and angles is not None:
            cos, sin = angles[:, :, None]
            query, key = (rotate(each, cos, sin, rope.is_interleaved) for each in (query, key))
        return query if growth is None else query * growth[:, None, :, None].to(query.dtype), key, value

    def _turned(
        self,
        query: Tensor,
        key: Tensor,
        angles: Tensor | None,
        growth: Tensor | None,
        norm: Literal["", "head", "whole"],
    ) -> tuple[Tensor, Tensor]:
        """By our kernels, which round after the norm and after the rotation. norm: of queries and keys, if frozen."""
        from workers.models.layer_kernels import Rotary, Turn, Turned

        one, rope = self._described, self._one.rope
        rotated = 0 if angles is None else angles.shape[-1]
        is_interleaved = rope is not None and rope.is_interleaved
        half = rotated // 2
        if not norm:
            if angles is None:
                return query, key
            if growth is None and not is_interleaved and rotated == self._width and half & (half - 1) == 0:
                rotary: Any = Rotary.apply
                plain: tuple[Tensor, Tensor] = rotary(query, key, *angles.unbind())
                return plain
        attention, apply = self.layer.self_attn, Turned.apply
        weights = (attention.q_norm.weight, attention.k_norm.weight) if norm else (None, None)
        turn = Turn(norm, one.norm.eps, one.norm.plus_one, rotated, is_interleaved)
        found: tuple[Tensor, Tensor] = apply(query, key, *weights, angles, growth, turn)  # type: ignore[no-untyped-call]
        return found

    def _activated(self, parts: Sequence[Tensor], of: Leaves) -> Tensor:
        """What the MLP's last layer reads."""
        first, kind = parts[0], self._described.activation
        if self.learns_all and kind == "xielu":  # the kernel has no gradient for its slopes
            return _xielu(first, self._act, of)
        if not (first.is_cuda and first.dtype in ROUNDED and fused_layers.has_kernels(first.device)):
            if not self._described.has_gate:
                alone: Tensor = self._act(first)
                return alone
            gate, up = parts if len(parts) == 2 else first.chunk(2, dim=-1)
            both: Tensor = self._act(gate) * up
            return both
        from workers.models.layer_kernels import Activated, Gated, GatedPair

        if not self._described.has_gate:
            return Activated.apply(first, self._of_xielu(first), kind)  # type: ignore[no-untyped-call,no-any-return]
        if len(parts) == 1:
            return GatedPair.apply(first, kind)  # type: ignore[no-untyped-call,no-any-return]
        return Gated.apply(first, parts[1], kind)  # type: ignore[no-untyped-call,no-any-return]

    def _of_xielu(self, like: Tensor) -> Tensor:
        """The slopes of that activation, [4] float32; kept, because they are frozen."""
        if self._slopes is None:
            self._slopes = like.new_zeros(4, dtype=torch.float32)
            if self._described.activation == "xielu":
                with torch.inference_mode(False), torch.no_grad():
                    act, beta = self._act, self._act.beta.float()
                    pair = softplus(act.alpha_p.float()), beta + softplus(act.alpha_n.float())
                    self._slopes = torch.cat([*pair, beta.view(1), act.eps.float().view(1)])
        return self._slopes


def normed(norm: Any, x: Tensor, described: Architecture, of: Leaves | None = None) -> Tensor:
    """RMS norm of x, [..., H] in float32 or the dtype of the norm's weight; rounded once, to the latter. of: has the
    stand-in for its weight."""
    weight, one = norm.weight, described.norm
    does_learn = weight.requires_grad
    is_kernels = does_learn or x.dtype != weight.dtype or not isinstance(norm, FusedNorm)
    if does_learn and of:
        weight = of.get(weight, weight)
    if x.is_cuda and is_kernels and weight.dtype in ROUNDED and fused_layers.has_kernels(x.device):
        from workers.models.layer_kernels import Norm

        return Norm.apply(x, weight, one.eps, one.plus_one)  # type: ignore[no-untyped-call,no-any-return]
    if x.dtype == weight.dtype and not does_learn:  # the module would read its own weight, not the stand-in
        plain: Tensor = norm(x)
        return plain
    wide = stream_dtype(x.dtype)
    scale = weight.to(wide) + 1 if one.plus_one else weight.to(wide)
    return rms_norm(x.to(wide), weight.shape, scale, one.eps).to(weight.dtype)


def _xielu(x: Tensor, act: Any, of: Leaves) -> Tensor:
    """That activation (arXiv 2411.13010) with gradients for its two slopes; rounded once, to the dtype of x."""
    wide = x.to(stream_dtype(x.dtype))
    above, below = (softplus(of.get(alpha, alpha).to(wide.dtype)) for alpha in (act.alpha_p, act.alpha_n))
    beta, eps = act.beta.to(wide.dtype), act.eps.to(wide.dtype)
    low = (torch.expm1(torch.minimum(wide, eps)) - wide) * (beta + below)
    found: Tensor = torch.where(wide > 0, above * wide * wide, low) + beta * wide
    return found.to(x.dtype)


class Joint:
    """Linear modules that read the same x, with or without adapters: [..., in] to [..., out_i] each.

    Their A matrices are stacked, so that one product serves all of them. Modules that are trained themselves have no
    adapters.
    """

    def __init__(self, *modules: Any) -> None:
        self.modules = modules
        self.bases = [getattr(module, "base_layer", module) for module in modules]
        self._adapted = [number for number, module in enumerate(modules) if isinstance(module, LoraLinear)]
        self.learns = all(base.weight.requires_grad for base in self.bases)
        """Whether the weights and biases of the modules are trained."""
        self._kept: dict[bool, tuple[Any, Tensor]] = {}
        """Whether they are those of `copies_apart` -> the adapters' state, their A matrices stacked."""

    def __call__(self, x: Tensor, of: Leaves, in_fp8: bool = False) -> Sequence[Tensor]:
        """of: has the stand-ins for what is trained. in_fp8: as in `Given`."""
        rows = x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled():
            apply: Any = _Products.apply
            outs = apply(rows, self, in_fp8, *(of.get(one, one) for one in self.trained))
        else:
            outs = self.forward(rows, in_fp8)[0]
        return [out.view(*x.shape[:-1], -1) for out in outs]

    @property
    def adapted(self) -> list[int]:
        """Indices of the modules whose adapters are enabled."""
        return [number for number in self._adapted if self.modules[number].is_enabled]

    @property
    def trained(self) -> list[nn.Parameter]:
        """Those of each module in turn: its weight and its bias, if it has one; or the matrices of its adapter."""
        if self.learns:
            return [one for base in self.bases for one in (base.weight, base.bias) if one is not None]
        return [one for number in self.adapted for one in self.modules[number].matrices]

    @property
    def scale(self) -> float:
        """The scale of every adapter; all share one."""
        found: float = self.modules[self._adapted[0]].scale
        return found

    def forward(self, rows: Tensor, in_fp8: bool) -> tuple[list[Tensor], Tensor | None]:
        """rows: [N, in]. Returns the products, [N, out_i], and scale * x A^T of the adapted modules, [N, sum of
        ranks]."""
        bases, kind = self.bases, rows.dtype
        if in_fp8:
            outs = fp8.outputs(rows, bases)
        else:
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
        state, is_apart = (dtype, [module.state for module in adapted]), are_copies_apart()
        kept = self._kept.get(is_apart)
        if kept is None or kept[0] != state:
            # A rollout may be the first caller, and autograd cannot use tensors made in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                kept = self._kept[is_apart] = state, torch.cat([module.cast(dtype)[0] for module in adapted])
        return kept[1]

    @property
    def ranks(self) -> list[int]:
        """The rank of each adapted module: how the columns of [N, sum of ranks] and the rows of `a` are split."""
        return [self.modules[number].matrices[0].shape[0] for number in self.adapted]


class _Products(torch.autograd.Function):
    """base(x) + scale * (x A^T) B^T of modules that read the same x; gradients for x and for the float32 matrices, or
    for the weights and biases, in their dtype."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, joint: Joint, in_fp8: bool, *matrices: Tensor) -> tuple[Tensor, ...]:
        outs, inner = joint.forward(rows, in_fp8)
        ctx.save_for_backward(rows, inner)
        ctx.joint, ctx.in_fp8 = joint, in_fp8
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, inner = ctx.saved_tensors
        joint: Joint = ctx.joint
        of_rows: Tensor | None = None
        if ctx.needs_input_grad[0] and ctx.in_fp8:
            of_rows = fp8.of_rows(grads, joint.bases)
        elif ctx.needs_input_grad[0]:
            for base, grad in zip(joint.bases, grads, strict=True):
                weight = quantized.weight_of(base, grad.dtype)
                of_rows = grad @ weight if of_rows is None else of_rows.addmm_(grad, weight)
                del weight  # free it before the next one is dequantised
        if joint.learns:
            found = []
            for base, grad in zip(joint.bases, grads, strict=True):
                found.append(grad.t() @ rows)
                found += [] if base.bias is None else [grad.sum(0)]
            return of_rows, None, None, *found
        if inner is None:
            return of_rows, None, None
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
        return of_rows, None, None, *(one for pair in pairs for one in pair)
