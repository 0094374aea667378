"""Reads a family's config.json into an `Architecture`. (pure)

A record in `profiles/families/` names the fields that it knows. Any other field counts as unknown, because it may
affect the model, unless it is null, false, or known not to change any logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiles.description import Architecture, Layer, Norm, Rope

SIZES = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
    }
)
"""Fields that our code supports at any value."""
HARMLESS = frozenset(
    {
        # Names and versions.
        "model_type",
        "architectures",
        "auto_map",
        "transformers_version",
        "transformers.js_config",
        "_name_or_path",
        "name_or_path",
        "model_name",
        "model_version",
        "unsloth_version",
        "unsloth_fixed",
        "task_specific_params",
        "tokenizer_class",
        "prefix",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        # Tokens, and how text is generated.
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "max_length",
        "min_length",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
        "use_cache",
        "is_decoder",
        "is_encoder_decoder",
        "chunk_size_feed_forward",
        # Further outputs, precision and kernels.
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "return_dict_in_generate",
        "output_scores",
        "dtype",
        "torch_dtype",
        "torchscript",
        "_attn_implementation",
        "attn_implementation",
        "_experts_implementation",
        "pretraining_tp",
        "tp_plan",
        "base_model_tp_plan",
        # Only for training mode: a policy is always in evaluation mode.
        "initializer_range",
        "attention_dropout",
        "hidden_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "use_bfloat16",
    }
)
"""Fields that do not change any logit."""
WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
"""Fields about the sliding window."""
SCALING = frozenset(
    {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "attention_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    }
)
"""Parameters of a rotary embedding besides its base."""
DEFAULT_WINDOW = 4096
"""transformers' default for a family with a window if config.json names none."""


class Fields:
    """Reads a config.json by the usual field names, and records which fields were read.

    names: usual name -> the family's own name, where they differ.
    """

    def __init__(self, config: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self._config, self._names = config, names
        self._known = {names.get(name, name) for name in (*SIZES, *HARMLESS, *WINDOWS)}
        self._refused: set[str] = set()
        self.texts: dict[str, str] = {}

    def get(self, name: str, default: Any = None, *, fills: str = "") -> Any:
        """The value, or `default` if absent. fills: the field of `Architecture` that it sets."""
        own = self._names.get(name, name)
        self._known.add(own)
        if fills and own in self._config:
            self.remember(fills, name)
        return self._config.get(own, default)

    def remember(self, field: str, name: str) -> None:
        """Record `name` as the source of the field of `Architecture`, unless it has one already."""
        self.texts.setdefault(field, self._say(self._names.get(name, name)))

    def refuse(self, name: str) -> None:
        """Mark the field's value as unsupported."""
        self._refused.add(self._names.get(name, name))

    def unknown(self) -> tuple[str, ...]:
        """Refused and unread fields with their values. Null and false count as an absent feature."""
        strange = {
            name
            for name, value in self._config.items()
            if name not in self._known and value is not None and value is not False
        }
        return tuple(self._say(name) for name in sorted(strange | self._refused))

    def _say(self, own: str) -> str:
        text = str(self._config[own])
        return f"{own} = {text if len(text) <= 60 else f'{text[:57]}...'}"


@dataclass(frozen=True)
class Family:
    """One architecture of transformers. describe: builds the record from the fields; `usual` does most of it."""

    model_type: str
    model_class: str
    describe: Callable[[Fields], Architecture]
    names: Mapping[str, str] = field(default_factory=dict)
    """Usual name of a field in config.json -> the family's own name, where they differ."""
    is_compared: bool = False
    """Whether our own code may compute it: tests compare it with plain transformers, with norm weights other than 1
    and biases other than 0."""
    is_left_padded: bool = False
    """Whether transformers' `generate` gives the same result with left padding as without."""

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """The architecture described by a config.json of this family."""
        fields = Fields(config, self.names)
        found = self.describe(fields)
        return replace(
            found,
            family=self.model_type,
            model_class=self.model_class,
            is_compared=self.is_compared,
            texts=fields.texts,
            unknown=fields.unknown(),
        )


def usual(
    fields: Fields, *, window: int | None = None, activation: str = "hidden_act", has_ropes: bool = False
) -> Architecture:
    """A decoder like Llama's: norms before each part, a gated MLP, one rotary embedding, no biases, no scales.

    window: of the layers that `layer_types` calls sliding, or of all layers without `layer_types`. activation: the
    field that names it. has_ropes: each kind of layer may have its own rotary embedding.
    """
    quantization = fields.get("quantization_config")
    # Loading writes our own NF4 into the config. Other quantisations use different weights.
    is_own = isinstance(quantization, Mapping) and quantization.get("quant_method") == "bitsandbytes"
    if quantization is not None and not is_own:
        fields.refuse("quantization_config")
    count = fields.get("num_hidden_layers")
    kinds = fields.get("layer_types") or ["sliding_attention"] * (count if isinstance(count, int) else 1)
    ropes = _ropes(fields, has_ropes)
    return Architecture(
        layers=tuple(Layer(None if kind == "full_attention" else window, ropes.get(kind, ropes[""])) for kind in kinds),
        norm=Norm(eps=fields.get("rms_norm_eps", 1e-6)),
        activation=fields.get(activation, "silu", fills="activation"),
    )


def window_of(fields: Fields) -> int | None:
    """The window of a family whose sliding layers have one unless config.json says null."""
    found = fields.get("sliding_window", DEFAULT_WINDOW)
    return None if found is None else int(found)


def _ropes(fields: Fields, has_ropes: bool) -> dict[str, Rope]:
    """Kind of layer -> its rotary embedding; "" for every other kind."""
    share = fields.get("partial_rotary_factor")
    found = {"": Rope(theta=fields.get("rope_theta", 10_000.0), share=1.0 if share is None else share)}
    if found[""].share != 1.0:
        fields.remember("layers", "partial_rotary_factor")
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.get(name)
        if value is None:
            continue
        by_kind = value if has_ropes and _is_by_kind(value) else {"": value}
        for kind, each in by_kind.items():
            if (rope := _rope(each, found[""])) is None:
                fields.refuse(name)
                continue
            found[kind] = rope
            if rope.kind != "default" or rope.share != 1.0:
                fields.remember("layers", name)
    return found


def _is_by_kind(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, Mapping) for each in value.values())


def _rope(value: Any, like: Rope) -> Rope | None:
    """Returns None if the value is not understood."""
    if not isinstance(value, Mapping):
        return None
    kind = value.get("rope_type", value.get("type", "default"))
    known = SCALING | ({"short_factor", "long_factor"} if kind == "longrope" else set())
    if not isinstance(kind, str) or set(value) - known - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}:
        return None
    scaling = {name: each for name, each in value.items() if name in known}
    share = value.get("partial_rotary_factor", like.share)
    return Rope(kind, value.get("rope_theta", like.theta), share, scaling)
