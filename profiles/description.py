"""Describes what a model computes in one record, independent of the names in its config.json. (pure)

The planner, the packed rows, the layers and the engines read only this about a model's kind. Its sizes, and whether the
output head is tied to the embedding, are in `profiles/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

QKV = frozenset({"q_proj", "k_proj", "v_proj"})
ATTENTION = QKV | {"o_proj"}
GATE_UP = frozenset({"gate_proj", "up_proj"})
MLP = GATE_UP | {"down_proj"}
"""Linear layers of a block, by module name."""
FUSED = {"qkv_proj": QKV, "gate_up_proj": GATE_UP}
"""Linear layer -> those that it computes at once, one after another in this order: q, k, v; gate, up."""

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn", "longrope", "proportional"})
"""Kinds whose table depends only on the position; `longrope` within its original context, which the engines refuse to
leave. `dynamic` depends on the length of the sequence."""


@dataclass(frozen=True)
class NormNames:
    """Where a block has norms: names of its modules, empty where there is none."""

    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""


PRE = NormNames()
POST = NormNames("", "post_attention_layernorm", "", "post_feedforward_layernorm")
SANDWICH = NormNames(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


@dataclass(frozen=True)
class Norm:
    """Kind and place of the norms in a block."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    plus_one: bool = False
    """Whether the scale is one plus the stored weight."""
    names: NormNames = PRE

    @property
    def before(self) -> bool:
        """Whether attention and MLP normalise their input."""
        return bool(self.names.before_attention)

    @property
    def after(self) -> bool:
        """Whether their output is normalised before it is added."""
        return bool(self.names.after_attention)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, which rotates the first half of the rotated dimensions with the second."""

    kind: str = "default"
    theta: float = 10_000.0
    share: float = 1.0
    """Share of a head's width that is rotated. The rest passes as it is; of kind `proportional` it is rotated by 0."""
    is_interleaved: bool = False
    """Whether even dimensions are rotated with odd ones instead."""
    query_growth: float = 0.0
    """Rotated queries grow by the factor 1 + this * log(1 + floor(position / original context))."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of the kind, by transformers' names."""


@dataclass(frozen=True)
class Layer:
    """What may differ between layers."""

    window: int | None = None
    """Number of tokens that a token attends to, including itself; None means all before it."""
    rope: Rope | None = Rope()
    """None if positions are not encoded."""
    rope_name: str = ""
    """What the model's rotary embedding calls `rope`; empty if it has one for all layers."""
    head_dim: int | None = None
    key_heads: int | None = None
    """Width of a head, and heads of keys and values, where they are not those of config.json."""
    values_are_keys: bool = False
    """Whether values are the keys before their norm: there is no `v_proj`."""


@dataclass(frozen=True)
class Architecture:
    """A decoder that alternates attention and MLP. The defaults suit most families."""

    family: str = ""
    """`model_type` in config.json."""
    model_class: str = ""
    """transformers' class of the model with output head."""
    is_compared: bool = False
    """Whether tests compare our own code with plain transformers for this family."""
    layers: tuple[Layer, ...] = (Layer(),)
    norm: Norm = Norm()
    qk_norm: Literal["", "head", "whole"] = ""
    """Queries and keys are normalised before the rotation, by the norm's kind: each head by one weight of its width, or
    all heads together."""
    v_norm: bool = False
    """Values are normalised per head, without a weight."""
    biases: frozenset[str] = frozenset()
    """Linear layers with a bias."""
    fused: frozenset[str] = frozenset()
    """Linear layers that compute several at once, of `FUSED`."""
    activation: str = "silu"
    """Activation of the MLP, by transformers' name."""
    has_gate: bool = True
    """The MLP is down(activation(gate(x)) * up(x)); else down(activation(up(x)))."""
    embedding_scale: float = 1.0
    embedding_is_scaled: bool = False
    """Whether the embedding's module applies that scale itself, rounded to the dtype of its weight."""
    residual_scale: float = 1.0
    """Factor on the output of attention and MLP before it is added."""
    layer_scale: bool = False
    """A block's output is multiplied by its buffer `layer_scalar`."""
    attention_scale: float | None = None
    """Factor on queries times keys; None means 1 / sqrt(head width)."""
    logit_scale: float = 1.0
    attention_cap: float | None = None
    """Attention scores x become cap * tanh(x / cap); None leaves them as they are."""
    logit_cap: float | None = None
    """The same for logits, after their scale."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Field of this record -> its source in config.json, with the value."""
    unknown: tuple[str, ...] = ()
    """Fields of config.json that may affect the computation but are unknown to the family's record."""

    @property
    def window(self) -> int | None:
        """The shortest window of all layers; None if no layer has one."""
        return min((layer.window for layer in self.layers if layer.window is not None), default=None)

    def text_of(self, name: str) -> str:
        """The field `name` as it appears in config.json, with its value."""
        return self.texts.get(name, f"{name} = {getattr(self, name)}")

    def within(self, longest: int) -> Architecture:
        """The same for sequences of at most `longest` tokens, 0 if unknown: windows that hold them all are none."""
        if not longest:
            return self
        seen = tuple(
            replace(layer, window=None) if layer.window is not None and layer.window >= longest else layer
            for layer in self.layers
        )
        return replace(self, layers=seen)

    @property
    def linear_names(self) -> tuple[str, ...]:
        """Linear layers of a block by module name, fused ones as such."""
        attention = ("qkv_proj",) if "qkv_proj" in self.fused else ("q_proj", "k_proj", "v_proj")
        gate = ("gate_proj",) if self.has_gate else ()
        up = ("gate_up_proj",) if "gate_up_proj" in self.fused else (*gate, "up_proj")
        return (*attention, "o_proj", *up, "down_proj")
