"""Reads a family's config.json into an `Architecture`. (pure)

A record in `profiles/families/` names the fields that it knows. Any other field counts as unknown, because it may
affect the model, unless it is null, false, or known not to change any logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from profiles.description import ATTENTION, MLP, Architecture, Layer, Norm, Rope

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
        "cache_implementation",
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
        "residual_dropout",
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
        "max_position_embeddings",
    }
)
"""Parameters of a rotary embedding besides its base."""
DEFAULT_WINDOW = 4096
"""transformers' default for a family with a window if config.json names none."""


class Fields:
    """Reads a config.json by the usual field names, and records which fields were read.

    names: usual name -> the family's own name, where they differ. defaults: what transformers takes for a field that is
    absent, where it is not what `usual` takes.
    """

    def __init__(
        self, config: Mapping[str, Any], names: Mapping[str, str], defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._config, self._names, self._defaults = config, names, defaults or {}
        self._known = {names.get(name, name) for name in (*SIZES, *HARMLESS, *WINDOWS)}
        self._refused: set[str] = set()
        self.texts: dict[str, str] = {}

    def get(self, name: str, default: Any = None, *, fills: str = "") -> Any:
        """The value, or a default if absent. fills: the field of `Architecture` that it sets."""
        own = self._names.get(name, name)
        self._known.add(own)
        if fills and own in self._config:
            self.remember(fills, name)
        return self._config.get(own, self._defaults.get(name, default))

    def remember(self, field: str, name: str) -> None:
        """Record `name` as the source of the field of `Architecture`, unless it has one already."""
        self.texts.setdefault(field, self._say(self._names.get(name, name)))

    def refuse(self, name: str) -> None:
        """Mark the field's value as unsupported."""
        self._refused.add(self._names.get(name, name))

    def refuse_unless_off(self, *names: str) -> None:
        """Mark fields as unsupported where they are set to anything but null, false or 0."""
        for name in names:
            if self.get(name):
                self.refuse(name)

    def refuse_unless(self, name: str, value: Any) -> None:
        """Mark a field as unsupported unless it is absent or has the value of which transformers' code is made."""
        if self.get(name, value) != value:
            self.refuse(name)

    def unknown(self) -> tuple[str, ...]:
        """Refused and unread fields with their values. Null and false count as an absent feature."""
        strange = {
            name
            for name, value in self._config.items()
            if name not in self._known and value is not None and value is not False
        }
        return tuple(self._say(name) for name in sorted(strange | self._refused))

    def _say(self, own: str) -> str:
        text = str(self._config.get(own, self._defaults.get(own)))
        return f"{own} = {text if len(text) <= 60 else f'{text[:57]}...'}"


@dataclass(frozen=True)
class Family:
    """One architecture of transformers. describe: builds the record from the fields; `usual` does most of it."""

    model_type: str
    model_class: str
    describe: Callable[[Fields], Architecture]
    names: Mapping[str, str] = field(default_factory=dict)
    """Usual name of a field in config.json -> the family's own name, where they differ."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for a usual field that config.json lacks, where it is not null."""
    is_compared: bool = False
    """Whether our own code may compute it: tests compare it with plain transformers, with norm weights other than 1
    and biases other than 0."""
    is_left_padded: bool = False
    """Whether transformers' `generate` gives the same result with left padding as without."""

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """The architecture described by a config.json of this family."""
        fields = Fields(config, self.names, self.defaults)
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
    fields: Fields,
    *,
    window: int | None = None,
    kinds: Sequence[str] | None = None,
    activation: str = "hidden_act",
    ropes: Mapping[str, Rope] | None = None,
) -> Architecture:
    """A decoder like Llama's: norms before each part, a gated MLP, one rotary embedding, no biases, no scales.

    window: of the layers that `layer_types` calls sliding. kinds: what `layer_types` is if absent; by default all
    layers slide. activation: the field that names it. ropes: from `ropes_of`; by default one for all kinds of layer.
    """
    quantization = fields.get("quantization_config")
    # Loading writes our own NF4 into the config. Other quantisations use different weights.
    is_own = isinstance(quantization, Mapping) and quantization.get("quant_method") == "bitsandbytes"
    if quantization is not None and not is_own:
        fields.refuse("quantization_config")
    of_layers = fields.get("layer_types") or kinds or ["sliding_attention"] * count_of(fields)
    if set(of_layers) - {"sliding_attention", "full_attention"}:
        fields.refuse("layer_types")
    found = ropes or {"": rope_of(fields)}
    return Architecture(
        layers=tuple(
            Layer(
                window if kind == "sliding_attention" else None,
                found.get(kind, found[""]),
                rope_name=kind if kind in found else "",
            )
            for kind in of_layers
        ),
        norm=Norm(eps=fields.get("rms_norm_eps", 1e-6)),
        activation=fields.get(activation, "silu", fills="activation"),
    )


def count_of(fields: Fields) -> int:
    """Number of layers."""
    count = fields.get("num_hidden_layers")
    return count if isinstance(count, int) else 1


def every(fields: Fields, pattern: int) -> list[str]:
    """Kinds of layers of which every `pattern`-th is full and the others slide; 0: none slides."""
    return [
        "sliding_attention" if pattern and (number + 1) % pattern else "full_attention"
        for number in range(count_of(fields))
    ]


def window_of(fields: Fields) -> int | None:
    """The window of a family whose sliding layers have one unless config.json says null."""
    found = fields.get("sliding_window", DEFAULT_WINDOW)
    return None if found is None else int(found)


def late_windows(fields: Fields) -> tuple[list[str], int | None]:
    """Kinds of layers, and the window, of a family whose layers slide from `max_window_layers` on if config.json asks
    for it."""
    window = window_of(fields) if fields.get("use_sliding_window", False) else None
    first = fields.get("max_window_layers", 28) if window is not None else count_of(fields)
    kinds = ["sliding_attention" if number >= first else "full_attention" for number in range(count_of(fields))]
    return kinds, window


def biases_of(fields: Fields, *, attention: frozenset[str] = ATTENTION, has_biases: bool = False) -> frozenset[str]:
    """Linear layers with a bias: `attention` by the field `attention_bias` (absent: has_biases), the MLP's by
    `mlp_bias`."""
    found = attention if fields.get("attention_bias", has_biases) else frozenset[str]()
    return found | MLP if fields.get("mlp_bias", False) else found


def rope_of(fields: Fields, *, is_partial: bool = False, is_interleaved: bool = False) -> Rope:
    """The rotary embedding of a family that has one for all layers. is_partial: its code heeds
    `partial_rotary_factor`."""
    share = fields.get("partial_rotary_factor")
    plain = Rope(theta=fields.get("rope_theta", 10_000.0), share=share or 1.0, is_interleaved=is_interleaved)
    if plain.share != 1.0:
        fields.remember("layers", "partial_rotary_factor")
    for name in ("rope_parameters", "rope_scaling"):
        if (value := fields.get(name)) is not None:
            plain = _read(fields, name, value, plain)
    if plain.share != 1.0 and not is_partial:
        fields.refuse("rope_parameters" if fields.get("rope_parameters") else "partial_rotary_factor")
    return plain


def ropes_of(fields: Fields, plain: Mapping[str, Rope], *, scaled: str = "full_attention") -> dict[str, Rope]:
    """Kind of layer -> its rotary embedding, of a family with several. plain: those of an older config.json, in which
    `rope_scaling` holds for the kind `scaled`."""
    found = {**plain, "": Rope()}
    if (value := fields.get("rope_scaling")) is not None:
        found[scaled] = _read(fields, "rope_scaling", value, found[scaled])
    value = fields.get("rope_parameters")
    if isinstance(value, Mapping) and all(each is None or isinstance(each, Mapping) for each in value.values()):
        for kind in plain:
            if value.get(kind) is not None:
                found[kind] = _read(fields, "rope_parameters", value[kind], found[kind])
    elif value is not None:
        found |= {kind: _read(fields, "rope_parameters", value, found[kind]) for kind in plain}
    return found


def _read(fields: Fields, name: str, value: Any, like: Rope) -> Rope:
    """The rotary embedding that the field `name` holds as `value`; refuses what is not understood."""
    if not isinstance(value, Mapping):
        fields.refuse(name)
        return like
    kind = value.get("rope_type", value.get("type", "default"))
    others = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "llama_4_scaling_beta"}
    known = SCALING | ({"short_factor", "long_factor"} if kind == "longrope" else set())
    if not isinstance(kind, str) or set(value) - known - others:
        fields.refuse(name)
        return like
    found = replace(
        like,
        kind=kind,
        theta=value.get("rope_theta", like.theta),
        share=value.get("partial_rotary_factor", like.share),
        query_growth=value.get("llama_4_scaling_beta") or 0.0,
        scaling={name: each for name, each in value.items() if name in known},
    )
    if found.kind != "default" or found.share != 1.0 or found.query_growth:
        fields.remember("layers", name)
    return found
