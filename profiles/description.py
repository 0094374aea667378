"""What a model computes, in words of our own: one record, whatever its config.json calls things. (pure)

The planner, the packed rows, the layers and the engines read it, and nothing else about a model's kind. Its sizes, and
whether its output head is its embedding, stand in `profiles/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

QKV = frozenset({"q_proj", "k_proj", "v_proj"})
ATTENTION = QKV | {"o_proj"}
MLP = frozenset({"gate_proj", "up_proj", "down_proj"})
"""Linear layers of a block, by the names of their modules."""

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds whose table depends on the position alone. `dynamic` and `longrope` depend on the length of the sequence."""


@dataclass(frozen=True)
class Norm:
    """How the norms of the residual stream compute, and where in a block they stand."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    plus_one: bool = False
    """Scales by one more than the weight that is stored."""
    before: bool = True
    """Attention and MLP each read normed input."""
    after: bool = False
    """What each of them returns is normed before it is added."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: the first half of what is turned with the second."""

    kind: str = "default"
    theta: float = 10_000.0
    share: float = 1.0
    """Of a head's width that is turned."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """Numbers that the kind needs besides, by transformers' names."""


@dataclass(frozen=True)
class Layer:
    """What is a layer's own."""

    window: int | None = None
    """Most tokens that a token sees, itself among them; None: all before it."""
    rope: Rope | None = Rope()
    """None: positions are not encoded."""


@dataclass(frozen=True)
class Architecture:
    """A decoder of attention and gated MLP, in turn. The defaults are those of most families."""

    family: str = ""
    """What config.json calls `model_type`."""
    model_class: str = ""
    """transformers' class of the model with its output head."""
    is_compared: bool = False
    """Tests compare what our own code computes of the family with plain transformers."""
    layers: tuple[Layer, ...] = (Layer(),)
    norm: Norm = Norm()
    qk_norm: bool = False
    """Queries and keys are normed, each head by itself, before they are turned."""
    biases: frozenset[str] = frozenset()
    """Linear layers that have one."""
    activation: str = "silu"
    """Of the MLP's gate, by transformers' name."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Of what a block's parts return, before it is added."""
    attention_scale: float | None = None
    """Of queries times keys; None: one over the root of the width of a head."""
    logit_scale: float = 1.0
    attention_cap: float | None = None
    """Attention scores x become cap * tanh(x / cap); None: they stay."""
    logit_cap: float | None = None
    """The same of logits."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Field of this record -> the field of config.json that it is from, with its value."""
    unknown: tuple[str, ...] = ()
    """Fields of config.json that may change what is computed, and that the family's record does not know."""

    @property
    def window(self) -> int | None:
        """The shortest of all layers; None: every layer sees all."""
        return min((layer.window for layer in self.layers if layer.window is not None), default=None)

    def text_of(self, name: str) -> str:
        """The field `name` as a person finds it in config.json, with its value."""
        return self.texts.get(name, f"{name} = {getattr(self, name)}")
