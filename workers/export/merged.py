"""A model's weights for any program: adapters merged, 4 bits dequantised, in files of bounded size.

W' = W + scale * B A in float32, rounded once. W is what the trainer computes with; for a 4-bit base, its dequantised
weights. Merging back into 4 bits would round most of a small adapter away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from state.weights import INDEX, WEIGHTS
from workers.models.adapters import ADAPTER
from workers.models.weights import refuse_not_finite
from workers.rollout.weight_transfer import base_weights, stored_buffers

Wrote = Callable[[Path], None]


@torch.no_grad()
def merged_weights(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its name without adapters, one at a time, on the CPU; tied weights once."""
    adapted = {f"{name}.weight": module for name, module in model.named_modules() if hasattr(module, "base_layer")}
    for name, weight in base_weights(model):
        if name in adapted:
            weight = weight.float() + product_of(adapted[name]).to(weight.device)
        yield name, weight.to(dtype).cpu().contiguous()


def product_of(module: Any) -> Tensor:
    """What an adapter adds to its layer's weight, [out, in], float32."""
    a, b = (getattr(module, name)[ADAPTER].weight.detach().float() for name in ("lora_A", "lora_B"))
    found: Tensor = (b @ a) * module.scaling[ADAPTER]
    return found


def write_weights(model: Any, dtype: torch.dtype, directory: Path, shard_bytes: int, wrote: Wrote) -> None:
    """Write one safetensors file, or several with an index. Besides the model, memory holds one file's tensors.

    Raises LonghaulError (NOT_FINITE) for a weight that is NaN or infinite, even if only the cast to `dtype` made it so.
    """
    shards = plan_shards([(name, bytes_of(weight, dtype)) for name, weight in shapes(model)], shard_bytes)
    weights = merged_weights(model, dtype)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = dict(next(weights) for _ in names)
        refuse_not_finite(tensors)
        save_file(tensors, directory / file, {"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        wrote(directory / file)
    if len(shards) > 1:
        total = sum((directory / file).stat().st_size for file in set(places.values()))
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        wrote(directory / INDEX)


def shapes(model: Any) -> Iterator[tuple[str, int]]:
    """Name and number of elements of every weight, in the order of `merged_weights`, without dequantising."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            state = getattr(parameter, "quant_state", None)
            yield name, parameter.numel() if state is None else torch.Size(state.shape).numel()
    for name, buffer in stored_buffers(model):
        yield name, buffer.numel()


def bytes_of(elements: int, dtype: torch.dtype) -> int:
    return elements * dtype.itemsize


def plan_shards(weights: Sequence[tuple[str, int]], limit: int) -> list[list[str]]:
    """Names in order, as many per file as fit; one above the limit gets its own file. (pure)"""
    shards: list[list[str]] = []
    room = 0
    for name, size in weights:
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards
