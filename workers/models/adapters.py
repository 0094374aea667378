"""LoRA adapters (arXiv 2106.09685): injected into a frozen base, saved without it, in PEFT's own layout.

The matrices have the same names under peft and under lora.py, so a resume can switch from one to the other.

The order is "freeze, inject", as in the QLoRA recipes. The model stays a plain module that engines and updates call
directly, on one GPU and on several (data_parallel.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter as Knobs
from profiles.targets import own_targets, refusal
from workers.models import lora, plain
from workers.models.quantized import require
from workers.models.weights import refuse_not_finite
from workers.rng import derive

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
ADAPTER = lora.ADAPTER
PREFIX = "base_model.model."
"""The prefix that PEFT puts before the base model's names."""


def linear_names(model: nn.Module) -> tuple[str, ...]:
    """Last name parts of all linear layers except the output head (with tied weights, the head is the embedding)."""
    names = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return tuple(sorted(names - {"lm_head"}))


def knobs_for(model: Any, knobs: Knobs) -> Knobs:
    """The knobs with targets named as the model names its layers."""
    found = plain.described(model)
    return knobs if found is None else replace(knobs, targets=own_targets(found, knobs.targets))


def inject(model: Any, knobs: Knobs, seed: int) -> None:
    """Freeze `model` and add adapters to its linear layers: A drawn from `seed`, B zero, both float32.

    Raises LonghaulError (INPUT) for a target that the model does not have, or that cannot have an adapter.
    """
    known = linear_names(model)
    if unknown := [target for target in knobs.targets if target not in known]:
        what, next_command = refusal(unknown, known)
        raise LonghaulError(what, kept="the run, unchanged", next_command=next_command, exit_code=ExitCode.INPUT)
    model.requires_grad_(False)
    if knobs.implementation == "own":
        lora.inject(model, knobs, seed)
        if plain.reason_of(model):
            _refuse_unheard(model)
    else:
        _inject_peft(model, knobs, seed)
    for parameter in adapter_of(model).values():
        parameter.data = parameter.data.float()  # a step of 1e-5 does not change a bfloat16 weight of 1e-2
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
            get_peft_model(model, config, adapter_name=ADAPTER)  # changes `model` in place
        except ValueError as error:  # peft refuses recurrent layers whose weights are read without calling the layer
            raise _not_adaptable(model, str(error)) from error


def _refuse_unheard(model: Any) -> None:
    """Raises LonghaulError (INPUT) if the model's code reads the weight of an adapted layer without calling the layer,
    as some recurrent models do. The adapter would have no effect."""
    with torch.no_grad():
        try:
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), use_cache=False)
        except AttributeError as error:
            raise _not_adaptable(model, f"its code bypasses the adapter: {error}") from error


def _not_adaptable(model: Any, why: str) -> LonghaulError:
    return LonghaulError(
        f"adapter.targets names a layer of {type(model).__name__} that cannot have an adapter: {why}",
        kept="the run, unchanged",
        next_command="take such layers (out_proj, x_proj, dt_proj of recurrent blocks) out of adapter.targets",
        exit_code=ExitCode.INPUT,
    )


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """Inside, `model` computes exactly what the base model computes. The KL refers to this."""
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
    """The adapters' matrices in order, by the names under which PEFT stores them."""
    found = {
        PREFIX + name.replace(f".{ADAPTER}.", "."): parameter
        for name, parameter in model.named_parameters()
        if f".lora_A.{ADAPTER}." in name or f".lora_B.{ADAPTER}." in name
    }
    return dict(sorted(found.items()))


def count_trained(model: nn.Module) -> int:
    """Number of B matrices that are not all zero. The others leave the base's output unchanged."""
    return sum(bool(tensor.any()) for name, tensor in adapter_of(model).items() if ".lora_B." in name)


def config_json(knobs: Knobs, base: str) -> bytes:
    """`adapter_config.json` for `peft.PeftModel.from_pretrained`. base: path of the base model. (pure)"""
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
    """The adapters' matrices in float32, in peft's format. Registered."""

    filename = WEIGHTS

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def save(self, path: Path) -> None:
        """Raises LonghaulError (NOT_FINITE) if a weight is NaN or infinite; such a checkpoint is never written."""
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
    """The first difference in name or shape between two sets of matrices; empty if there is none. (pure)

    A loader that skips what does not fit would leave the adapter at its initial values, and validation would then
    measure the base model.
    """
    missing, unexpected = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
    if missing or unexpected:
        first = f"{missing[0]} is missing" if missing else f"{unexpected[0]} is not expected"
        return f"{first} ({len(missing)} missing, {len(unexpected)} unexpected)"
    for name, tensor in stored.items():
        if tensor.shape != wanted[name].shape:
            return f"{name} is {list(tensor.shape)}, not {list(wanted[name].shape)}"
    return ""
