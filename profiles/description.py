"""Describes what a model computes in one record, independent of the names in its config.json. (pure)

The planner, the packed rows, the layers and the engines read only this about a model's kind. Its sizes, and whether the
output head is tied to the embedding, are in `profiles/shapes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

QKV = frozenset({"q_proj", "k_proj", "v_proj"})
ATTENTION = QKV | {"o_proj"}
MLP = frozenset({"gate_proj", "up_proj", "down_proj"})
"""Linear layers of a block, by module name."""

ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds whose table depends only on the position. `dynamic` and `longrope` depend on the sequence length."""


@dataclass(frozen=True)
class Norm:
    """Kind and place of the norms in a block."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    plus_one: bool = False
    """Whether the scale is one plus the stored weight."""
    before: bool = True
    """Whether attention and MLP normalise their input."""
    after: bool = False
    """Whether their output is normalised before it is added."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, which rotates the first half of the dimensions with the second."""

    kind: str = "default"
    theta: float = 10_000.0
    share: float = 1.0
    """Share of a head's width that is rotated."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of the kind, by transformers' names."""


@dataclass(frozen=True)
class Layer:
    """What may differ between layers."""

    window: int | None = None
    """Number of tokens that a token attends to, including itself; None means all before it."""
    rope: Rope | None = Rope()
    """None if positions are not encoded."""


@dataclass(frozen=True)
class Architecture:
    """A decoder that alternates attention and gated MLP. The defaults suit most families."""

    family: str = ""
    """`model_type` in config.json."""
    model_class: str = ""
    """transformers' class of the model with output head."""
    is_compared: bool = False
    """Whether tests compare our own code with plain transformers for this family."""
    layers: tuple[Layer, ...] = (Layer(),)
    norm: Norm = Norm()
    qk_norm: bool = False
    """Queries and keys are normalised per head before the rotation."""
    qk_norm_is_whole: bool = False
    """They are normed over all heads together instead, with a weight for each channel."""
    biases: frozenset[str] = frozenset()
    """Linear layers with a bias."""
    activation: str = "silu"
    """Activation of the MLP's gate, by transformers' name."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor on the output of attention and MLP before it is added."""
    attention_scale: float | None = None
    """Factor on queries times keys; None means 1 / sqrt(head width)."""
    logit_scale: float = 1.0
    attention_cap: float | None = None
    """Attention scores x become cap * tanh(x / cap); None leaves them as they are."""
    logit_cap: float | None = None
    """The same for logits."""
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
