"""LoRA adapters (arXiv 2106.09685): injected into a frozen base, saved alone, in PEFT's own layout.

The matrices have the same names whether peft computes with them or lora.py: one may follow the other on a resume.

The order matters, and is "freeze, inject, wrap" of the QLoRA recipes. On one GPU there is nothing to shard: the model
stays the plain module that engines and updates call. For several, shards.py does the last part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter as Knobs
from workers.models import lora, plain
from workers.models.quantized import require
from workers.models.weights import refuse_not_finite
from workers.rng import derive

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
ADAPTER = lora.ADAPTER
PREFIX = "base_model.model."
"""What PEFT puts before the base model's names."""


def linear_names(model: nn.Module) -> tuple[str, ...]:
    """Last parts of the names of all linear layers but the output head, which is the embedding where they are tied."""
    names = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return tuple(sorted(names - {"lm_head"}))


def inject(model: Any, knobs: Knobs, seed: int) -> None:
    """Freeze `model` and put adapters into its linear layers: A drawn from `seed`, B zero, both in float32.

    Raises LonghaulError (INPUT) for a target that the model does not have.
    """
    known = linear_names(model)
    if unknown := [target for target in knobs.targets if target not in known]:
        raise LonghaulError(
            f"adapter.targets names {', '.join(unknown)}, which this model does not have; its linear layers are "
            f"{', '.join(known)}",
            kept="the run, unchanged",
            next_command=f"set adapter.targets to some of {', '.join(known)}",
            exit_code=ExitCode.INPUT,
        )
    model.requires_grad_(False)
    if knobs.implementation == "own":
        lora.inject(model, knobs, seed)
        if plain.reason_of(model):
            _refuse_unheard(model)
    else:
        _inject_peft(model, knobs, seed)
    for parameter in adapter_of(model).values():
        parameter.data = parameter.data.float()  # a bfloat16 weight of 1e-2 does not feel a step of 1e-5
    model.adapter_knobs = knobs
    model.eval()


def _inject_peft(model: Any, knobs: Knobs, seed: int) -> None:
    require("peft", 'adapter.implementation = "peft"')
    from peft import LoraConfig, get_peft_model

    make: Any = LoraConfig
    config = make(
        r=knobs.rank,
        lora_alpha=knobs.alpha,
        lora_dropout=knobs.dropout,
        target_modules=list(knobs.targets),
        bias="none",
        task_type="CAUSAL_LM",
        use_rslora=knobs.rslora,
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, 0, "adapter"))
        try:
            get_peft_model(model, config, adapter_name=ADAPTER)  # changes `model` itself
        except ValueError as error:  # of recurrent models it knows layers whose weights are read past an adapter
            raise _not_adaptable(model, str(error)) from error


def _refuse_unheard(model: Any) -> None:
    """Raises LonghaulError (INPUT) where the model's own code takes the weight of an adapted layer, and does not call
    the layer: recurrent ones do so with some."""
    with torch.no_grad():
        try:
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
        except AttributeError as error:
            raise _not_adaptable(model, f"its code reads past an adapter: {error}") from error


def _not_adaptable(model: Any, why: str) -> LonghaulError:
    return LonghaulError(
        f"adapter.targets names a layer of {type(model).__name__} that cannot have an adapter: {why}",
        kept="the run, unchanged",
        next_command="take such layers (out_proj, x_proj, dt_proj of recurrent blocks) out of adapter.targets",
        exit_code=ExitCode.INPUT,
    )


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """The base model alone, bit by bit: what a KL is taken against."""
    own = [module for module in model.modules() if isinstance(module, lora.LoraLinear)]
    theirs: list[Any] = [
        module for module in model.modules() if hasattr(module, "enable_adapters") and hasattr(module, "base_layer")
    ]
    for module in own:
        module.is_enabled = False
    for layer in theirs:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for module in own:
            module.is_enabled = True
        for layer in theirs:
            layer.enable_adapters(True)


def adapter_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapters' matrices by the names that PEFT stores them under, in order."""
    found = {
        PREFIX + name.replace(f".{ADAPTER}.", "."): parameter
        for name, parameter in model.named_parameters()
        if f".lora_A.{ADAPTER}." in name or f".lora_B.{ADAPTER}." in name
    }
    return dict(sorted(found.items()))


def count_trained(model: nn.Module) -> int:
    """B matrices that are not all zero: those that change what the base says."""
    return sum(bool(tensor.any()) for name, tensor in adapter_of(model).items() if ".lora_B." in name)


def config_json(knobs: Knobs, base: str) -> bytes:
    """`adapter_config.json`: what `peft.PeftModel.from_pretrained` reads. base: where the base model lies. (pure)"""
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": knobs.rank,
        "lora_alpha": knobs.alpha,
        "lora_dropout": knobs.dropout,
        "target_modules": sorted(knobs.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": knobs.rslora,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


class AdapterWeights:
    """The adapters' matrices in float32, as `peft` reads them. Registered."""

    filename = WEIGHTS

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def save(self, path: Path) -> None:
        """Raises LonghaulError (NOT_FINITE) where a weight is NaN or infinite: that is never a checkpoint."""
        tensors = {name: tensor.detach() for name, tensor in adapter_of(self._model).items()}
        refuse_not_finite(tensors)
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})

    def load(self, path: Path) -> None:
        """Raises LonghaulError (INPUT) unless the file holds exactly this model's matrices."""
        stored, mine = load_file(path), adapter_of(self._model)
        if problem := difference(stored, mine):
            raise LonghaulError(
                f"{path.name} of checkpoint {path.parent.name} does not fit the model: {problem}",
                kept="the checkpoint, unchanged; nothing was loaded",
                next_command="python -m orchestrator status",
                exit_code=ExitCode.INPUT,
            )
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(stored[name])


def difference(stored: dict[str, Tensor], wanted: dict[str, nn.Parameter]) -> str:
    """The first thing in which two sets of matrices differ by name or shape; empty: none. (pure)

    A loader that only takes what fits would leave the adapter as it was made, and the base model would be validated.
    """
    missing, unexpected = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
    if missing or unexpected:
        first = f"{missing[0]} is missing" if missing else f"{unexpected[0]} is not expected"
        return f"{first} ({len(missing)} missing, {len(unexpected)} unexpected)"
    for name, tensor in stored.items():
        if tensor.shape != wanted[name].shape:
            return f"{name} is {list(tensor.shape)}, not {list(wanted[name].shape)}"
    return ""
