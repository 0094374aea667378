"""Small operations of a decoder (norms, rotary embeddings, gates) as single kernels, on a GPU.

A training pass over a few rollouts waits for kernel launches, and these operations made two in five of them. The
modules keep their places, names and weights; only their computation changes. On a CPU and in float32, transformers'
code runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from profiles.description import QKV, Architecture, Norm
from profiles.written_out import supports as of_written_out
from workers.failures import is_out_of_memory
from workers.models import nf4
from workers.models.plain import described

log = logging.getLogger("worker")

ROUNDED = (torch.bfloat16, torch.float16)


_rotaries: dict[Any, FusedRotary] = {}
"""Module of transformers -> the replacement of its function."""


def supports(architecture: Architecture | None) -> str:
    """Why these operations cannot replace those of the model's own modules; empty if they can. The written-out layers,
    which call no module, compute more (`profiles.written_out`)."""
    if reason := of_written_out(architecture):
        return reason
    assert architecture is not None
    norm, ropes = architecture.norm, [layer.rope for layer in architecture.layers]
    holds = {
        "biases": architecture.biases <= QKV,
        "layers": all(rope == ropes[0] and rope.share == 1.0 and not rope.is_interleaved for rope in ropes if rope)
        and None not in ropes,
        "norm": norm == Norm(eps=norm.eps),
        "qk_norm": not architecture.qk_norm,
        "fused": not architecture.fused,
        "activation": architecture.activation == "silu" and architecture.has_gate,
    }
    return min((architecture.text_of(name) for name, is_known in holds.items() if not is_known), default="")


def enable(model: Any) -> None:
    """Fuse if the model is on a GPU, in 16 bits and supported. Call it once the model is on its device."""
    is_rounded = model.model.embed_tokens.weight.dtype in ROUNDED
    if model.device.type != "cuda" or not is_rounded or supports(described(model)):
        return
    fuse(model, with_triton=has_kernels(model.device))


def fuse(model: Any, *, with_triton: bool) -> None:
    """with_triton: replace gates and rotary embeddings too; otherwise only norms."""
    decoder = model.model
    norms = [norm for layer in decoder.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    for norm in (*norms, decoder.norm):
        norm.__class__ = fused_class(FusedNorm, type(norm))
    if not with_triton:
        return
    for layer in decoder.layers:
        layer.mlp.__class__ = fused_class(FusedMLP, type(layer.mlp))
    module = rotary_module(decoder.layers[0].self_attn)
    if module not in _rotaries:
        _rotaries[module] = FusedRotary(module.apply_rotary_pos_emb)
    # The attention module looks the function up by this name in its own file.
    module.apply_rotary_pos_emb = _rotaries[module]


_classes: dict[tuple[type, type], type] = {}


def fused_class(how: type, plain: type) -> type:
    """A subclass of `plain` that computes as `how` does."""
    if issubclass(plain, how):
        return plain
    return _classes.setdefault((how, plain), type(f"{how.__name__}{plain.__name__}", (how, plain), {}))


def rotary_module(attention: Any) -> Any:
    """The Python module in which an attention module's code looks up `apply_rotary_pos_emb`."""
    return sys.modules[next(one for one in type(attention).__mro__ if "forward" in vars(one)).__module__]


@contextmanager
def undone(model: Any) -> Iterator[None]:
    """Inside, `model` uses transformers' own small operations."""
    fused = [(module, type(module)) for module in model.modules() if isinstance(module, (FusedNorm, FusedMLP))]
    rotaries = {module: module.apply_rotary_pos_emb for module in _rotaries}
    for module, kind in fused:
        module.__class__ = kind.__bases__[1]
    for module in rotaries:
        module.apply_rotary_pos_emb = _rotaries[module].plain
    try:
        yield
    finally:
        for module, rotary in rotaries.items():
            module.apply_rotary_pos_emb = rotary
        for module, kind in fused:
            module.__class__ = kind


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether the kernels compile on `device` and agree with PyTorch there; logs the reason once if not."""
    if problem := problem_of(lambda: _agree(device)):
        log.warning("layers run without their Triton kernels: %s", problem)
    return not problem


def problem_of(agree: Callable[[], bool]) -> str:
    """Why kernels cannot be used; empty if they can. agree: runs them and returns whether they match PyTorch."""
    try:
        return "" if agree() else "they disagree with PyTorch"
    except Exception as error:  # compilers raise any type, and nothing is lost: PyTorch computes the same
        if is_out_of_memory(error):  # temporary, whereas this answer is kept for the life of the process
            raise
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _agree(device: torch.device) -> bool:
    from workers.models.layer_kernels import Gated, Norm, Rotary, dequantized

    generator = torch.Generator(device).manual_seed(0)
    x, y = torch.randn(2, 2, 3, 5, 16, device=device, generator=generator).bfloat16()  # [B, heads, T, D] each
    angles = x[:, 0, :, :8].repeat(1, 1, 2).float()
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    rotary: Any = Rotary.apply
    gated: Any = Gated.apply
    norm: Any = Norm.apply
    found = [*rotary(x, y, cos, sin), gated(x, y), norm(x.float(), y[0, 0, 0], 1e-6)]
    expected = [
        *(rotate(one, cos[:, None], sin[:, None]) for one in (x, y)),
        silu(x) * y,
        rms_norm(x, (16,), y[0, 0, 0], 1e-6),
    ]
    weight = nf4.quantize(x.float())
    found.append(dequantized(weight.packed, nf4.scales_of(weight), weight.shape, torch.bfloat16))
    expected.append(nf4.dequantize(weight, torch.bfloat16))
    with torch.inference_mode(False), torch.enable_grad():
        trained, rows = y[0, 0, 0].clone().requires_grad_(), x.float()
        scale = trained.detach().float().requires_grad_()
        found += torch.autograd.grad(norm(rows, trained, 1e-6).float().square().sum(), trained)
        expected += [
            one.bfloat16() for one in torch.autograd.grad(rms_norm(rows, (16,), scale, 1e-6).square().sum(), scale)
        ]
    return all(torch.allclose(one, other, rtol=0.02, atol=0.02) for one, other in zip(found, expected, strict=True))


class FusedNorm:
    """Rounds once, after the weight; transformers also rounds before it."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class FusedMLP:
    """The gate's activation and its product with the other half, in one kernel."""

    gate_proj: Any
    up_proj: Any
    down_proj: Any

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down_proj(gated(self, self.gate_proj(x), self.up_proj(x)))
        return found


def stream_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the residual stream in fast passes of a model that computes in `dtype`.

    In 16 bits the stream would be rounded twice per layer, a larger error in log-probs than any other rounding.
    """
    return torch.float32 if dtype in ROUNDED else dtype


def stream_of(model: Any) -> torch.dtype:
    """The dtype of the residual stream in rollouts. It must match training; transformers' modules round the stream."""
    dtype: torch.dtype = model.model.embed_tokens.weight.dtype
    return dtype if getattr(model, "fast_runner", None) is None else stream_dtype(dtype)


def normed(norm: Any, stream: Tensor) -> Tensor:
    """RMS norm of the residual stream, [..., H] in float32 or the dtype of the norm's weight; rounded once, to the
    latter."""
    weight = norm.weight
    if stream.dtype == weight.dtype:
        found: Tensor = norm(stream)
        return found
    if not isinstance(norm, FusedNorm):  # transformers' norms compute in float32
        rounded: Tensor = norm(stream).to(weight.dtype)
        return rounded
    eps = norm.variance_epsilon
    does_learn = weight.requires_grad and torch.is_grad_enabled()
    if stream.is_cuda and not does_learn and has_kernels(stream.device):
        from workers.models.layer_kernels import Norm

        apply: Any = Norm.apply
        fused: Tensor = apply(stream, weight, eps)
        return fused
    return rms_norm(stream, weight.shape, weight.to(stream.dtype), eps).to(weight.dtype)


def gated(mlp: Any, gate: Tensor, up: Tensor) -> Tensor:
    """What `mlp` computes from the outputs of its first two layers."""
    if not isinstance(mlp, FusedMLP):
        plain: Tensor = mlp.act_fn(gate) * up
        return plain
    from workers.models.layer_kernels import Gated

    apply: Any = Gated.apply
    found: Tensor = apply(gate, up)
    return found


def rotate(x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool = False) -> Tensor:
    """Rotary position embedding over the first dimensions of the last axis, as many as `cos` and `sin` have; in their
    dtype, then rounded to that of x.

    The first half of them is rotated with the second. is_interleaved: even ones with odd ones, whose angles are the
    first half of the table.
    """
    width = cos.shape[-1]
    is_whole = width == x.shape[-1]
    turned = x if is_whole else x[..., :width]
    if is_interleaved:
        cos, sin = (one[..., : width // 2].repeat_interleave(2, dim=-1) for one in (cos, sin))
        other = torch.stack((-turned[..., 1::2], turned[..., 0::2]), dim=-1).flatten(-2)
    else:
        first, second = turned.chunk(2, dim=-1)
        other = torch.cat((-second, first), dim=-1)
    found = (turned * cos + other * sin).to(x.dtype)
    return found if is_whole else torch.cat((found, x[..., width:]), dim=-1)


class FusedRotary:
    """Replaces transformers' function, and calls it for inputs that the kernel does not take."""

    def __init__(self, plain: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.plain = plain

    def __call__(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        half = query.shape[-1] // 2
        fits = query.is_cuda and unsqueeze_dim == 1 and half & (half - 1) == 0
        if not fits or query.dtype not in ROUNDED or query.stride(-1) != 1 or key.stride(-1) != 1:
            return self.plain(query, key, cos, sin, unsqueeze_dim)
        from workers.models.layer_kernels import Rotary

        apply: Any = Rotary.apply
        found: tuple[Tensor, Tensor] = apply(query, key, cos, sin)
        return found
