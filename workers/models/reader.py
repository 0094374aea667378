"""Reads a checkpoint into a model by transformers, and refuses weights that are not those of its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.families import architecture_of, name_of
from profiles.schema import Model as Knobs
from profiles.text_part import is_composite, text_part
from state.weights import shards
from workers.failures import exit_code_of
from workers.models import quantized
from workers.models.directory import read_json
from workers.models.files import ModelFileError, unusable
from workers.models.stored import Reading, without_quantization
from workers.models.weights import is_finite

TEXT_NAMES = {
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
"""How checkpoints with several parts name the weights of the language model -> its names alone."""
_TEXT_PREFIXES = ("language_model.", "model.language_model.", "lm_head.")


def is_compared(config: Mapping[str, Any]) -> bool:
    """Whether our own code can compute this model: it knows the family and every part of the config."""
    found = architecture_of(config)
    return found is not None and found.is_compared


def attention_for(config: Mapping[str, Any]) -> str:
    """transformers' name for the attention of a model that our own code computes; `attention.enable` replaces it. A
    class that may have soft caps does not take `sdpa`."""
    import transformers

    found = architecture_of(config)
    kind = getattr(transformers, found.model_class, None) if found else None
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"


def config_of(directory: Path, knobs: Knobs) -> Any:
    """transformers' config of the causal language model in a directory. Raises LonghaulError (INPUT) for a model whose
    code transformers does not have, unless the profile trusts the directory's."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    content = read_json(directory / "config.json")
    trusts = _runs_its_code(directory, content, knobs)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trusts)
    except Exception as error:  # of any type: each architecture checks its fields in its own way
        raise _unreadable(directory, error) from error
    if not is_composite(content):
        return config
    text = config.get_text_config(decoder=True)
    # The parts share one flag, which is the whole model's.
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", text.tie_word_embeddings)
    if (found := getattr(config, "quantization_config", None)) is not None:
        text.quantization_config = found
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise unusable(
            directory / "config.json",
            f"describes a model that reads more than text ({name_of(content)}), and transformers has no causal model "
            f"for its language part alone ({name_of(text.to_dict())})",
        )
    return text


def plain_config(directory: Path, model: Any) -> dict[str, Any]:
    """The config.json of `model` alone, in floating point: of the language model, without its 4 bits."""
    content = read_json(directory / "config.json")
    if not is_composite(content):
        return without_quantization(content)
    found = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    return without_quantization(found) | {"architectures": [type(model).__name__]}


def read(directory: Path, knobs: Knobs, device: torch.device, *, reading: Reading, quantizes: bool = False) -> Any:
    """The model, in 4 bits on `device`, or in floating point on the CPU. quantizes: from floating point to NF4.

    Raises LonghaulError (INPUT) unless the weights are exactly those that the config asks for.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    config = config_of(directory, knobs)
    content = read_json(directory / "config.json")
    options: dict[str, Any] = {"config": config, "dtype": getattr(torch, knobs.dtype)}
    if is_composite(content):
        options["key_mapping"] = TEXT_NAMES
    is_plain = not is_compared(config.to_dict())
    if not is_plain:  # other families do not take our masks, so transformers chooses their attention
        options["attn_implementation"] = attention_for(config.to_dict())
    elif config.to_dict().get("attn_logit_softcapping"):  # older transformers choose a kernel that ignores the cap
        options["attn_implementation"] = "eager"
    if quantizes:
        options["quantization_config"] = quantized.nf4_config(knobs.dtype)
    if reading == "nf4":
        quantized.require("bitsandbytes", 'model.quantization = "nf4"')
    if quantizes or reading == "nf4":
        options["device_map"] = {"": device}
    if reading == "dequantize":
        options["quantization_config"] = dequantizing(text_part(content))
    options["trust_remote_code"] = _runs_its_code(directory, content, knobs)
    model, found = _loaded(AutoModelForCausalLM.from_pretrained, directory, options)
    _refuse_other_names(directory, found, is_composite=is_composite(content))
    # Saving would undo how this checkpoint named and stored its weights; the model is to be saved as what it is now.
    model._weight_conversions = None
    if reading == "dequantize":
        _forget_quantization(model, getattr(torch, knobs.dtype))
    return model


def _loaded(load: Any, directory: Path, options: dict[str, Any]) -> Any:
    try:
        return load(directory, output_loading_info=True, **options)
    except Exception as error:  # of any type, where transformers lacks what an architecture needs
        if isinstance(error, RuntimeError) and "mismatch" in str(error):
            raise unusable(directory, "has weights of other shapes than its config.json says") from error
        if isinstance(error, RuntimeError | LonghaulError) or exit_code_of(error) != ExitCode.INTERNAL:
            raise  # of the machine: memory, a GPU, a disk
        raise _unreadable(directory, error) from error


def _unreadable(directory: Path, error: Exception) -> ModelFileError:
    kind = "" if isinstance(error, ValueError | KeyError | OSError) else f"{type(error).__name__}: "
    return unusable(directory / "config.json", f"cannot be loaded: {kind}{error}")


def _refuse_other_names(directory: Path, found: Mapping[str, Any], *, is_composite: bool) -> None:
    """The weights of a composite's other parts are left where they are."""
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(map(str, found.get(kind) or ()))
        if is_composite and kind == "unexpected_keys":
            names = [name for name in names if name.startswith(_TEXT_PREFIXES)]
        if names:
            raise unusable(directory, f"has weights that do not fit its config.json: {kind} {', '.join(names[:3])}")


# --- code of its own -------------------------------------------------------------------------------------------------


def _runs_its_code(directory: Path, content: Mapping[str, Any], knobs: Knobs) -> bool:
    """Whether the model runs code of its directory. Raises LonghaulError (INPUT) if it would have to, and may not."""
    from transformers import CONFIG_MAPPING

    if not content.get("auto_map") or name_of(content) in CONFIG_MAPPING:
        return False
    if knobs.trust_remote_code:
        return True
    files = sorted({str(one).split("--")[-1].rpartition(".")[0] + ".py" for one in _flat(content["auto_map"])})
    raise LonghaulError(
        f"the model in {directory} brings code of its own ({', '.join(files)}), because transformers does not know "
        f"{name_of(content)}: it would run in the worker with all your rights, outside the sandbox",
        kept="the run, unchanged",
        next_command="read these files, then: python -m orchestrator run --set model.trust_remote_code=true",
        exit_code=ExitCode.INPUT,
    )


def _flat(names: Mapping[str, Any]) -> Iterator[Any]:
    for value in names.values():
        yield from (one for one in (value if isinstance(value, list) else [value]) if one)


# --- other ways of storing weights -----------------------------------------------------------------------------------


def dequantizing(config: Mapping[str, Any]) -> Any:
    """transformers' settings that turn a quantised checkpoint into floating point."""
    from transformers.utils import quantization_config

    content = dict(config["quantization_config"])
    library: Any = quantization_config
    makers = {"fp8": library.FineGrainedFP8Config, "mxfp4": library.Mxfp4Config}
    make = makers[content.pop("quant_method")]
    quantized.require("accelerate", "a checkpoint that is stored in 8 or 4 bits")
    return make(**{**content, "dequantize": True})


def _forget_quantization(model: Any, dtype: torch.dtype) -> None:
    """Make it the plain model that it is now."""
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.hf_quantizer = None
    model.is_quantized = False
    model.to(dtype)


@contextmanager
def in_floating_point(directory: Path, knobs: Knobs, reading: Reading) -> Iterator[Path]:
    """A directory with the model in floating point: this one, or a copy that is deleted afterwards."""
    if reading == "plain":
        yield directory
        return
    with TemporaryDirectory(prefix="longhaul-model-") as made:
        model = read(directory, replace(knobs, quantization="none"), torch.device("cpu"), reading=reading)
        model.save_pretrained(made)
        del model
        yield Path(made)


# --- weights that are no numbers -------------------------------------------------------------------------------------


def refuse_not_finite_files(directory: Path) -> None:
    """Raises LonghaulError (INPUT) for a weight that is NaN or infinite: 4 bits would hide it."""
    from safetensors import safe_open

    for shard in shards(directory):
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not is_finite(tensor):
                    raise not_finite(directory, name)


def not_finite(directory: Path, name: str) -> ModelFileError:
    return unusable(directory, f"has a weight that is NaN or infinite, in {name}: download the model again")
