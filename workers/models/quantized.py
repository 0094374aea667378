"""The base model in 4 bits (NF4, QLoRA: arXiv 2305.14314), through bitsandbytes where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

from profiles.errors import ExitCode, LonghaulError
from workers.models import fused_layers, nf4


def require(library: str, knob: str) -> None:
    """Raises LonghaulError (INPUT) if a library that the profile needs is not installed."""
    if importlib.util.find_spec(library) is None:
        raise LonghaulError(
            f"{knob} needs {library}, which is not installed",
            kept="the run, unchanged",
            next_command=f"pip install -c constraints.txt {library}",
            exit_code=ExitCode.INPUT,
        )


def nf4_config(dtype: str) -> Any:
    """The config for transformers: linear layers in NF4 with quantised scales; embedding, head and norms in `dtype`."""
    require("bitsandbytes", 'model.quantization = "nf4"')
    from transformers import BitsAndBytesConfig

    make: Any = BitsAndBytesConfig
    return make(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )


def keep_gradients(model: Any) -> None:
    """Switch off a kernel of some CPUs that repacks the weights at the first rollout and has no backward pass."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def compute_in(model: Any, dtype: torch.dtype) -> None:
    """Let 4-bit layers compute in `dtype`: a checkpoint in 4 bits names its own."""
    for module in model.modules():
        if hasattr(module, "compute_dtype") and getattr(module.weight, "quant_state", None) is not None:
            module.compute_dtype = dtype


def is_known(module: Any) -> bool:
    """Whether `weight_of` can return the weight of this frozen linear layer."""
    state = getattr(module.weight, "quant_state", None)
    if state is None:
        return type(module) is nn.Linear
    return bool(state.quant_type == "nf4" and state.blocksize == nf4.BLOCK and module.weight.dtype == torch.uint8)


def weight_of(module: Any, dtype: torch.dtype) -> Tensor:
    """The layer's weight in `dtype`, [out, in]. A 4-bit weight is dequantised anew, into a tensor that the caller
    owns."""
    weight = module.weight
    if (state := getattr(weight, "quant_state", None)) is None:
        return weight.detach()  # type: ignore[no-any-return]
    if weight.is_cuda and fused_layers.has_kernels(weight.device):
        from workers.models.layer_kernels import dequantized

        return dequantized(weight.data, scales_of(module), state.shape, dtype)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data.view(-1, 1), state).to(dtype)


def scales_of(module: Any) -> Tensor:
    """The float32 scale of each 64 weights of a 4-bit layer, computed once: 1/16 byte per weight. Kernels that read the
    codes at every step would otherwise look each scale up in a table."""
    if not hasattr(module, "float_scales"):
        state = module.weight.quant_state
        if state.nested:
            from bitsandbytes.functional import dequantize_blockwise

            module.float_scales = (dequantize_blockwise(state.absmax, state.state2) + state.offset).float()
        else:
            module.float_scales = torch.as_tensor(state.absmax).float()
    found: Tensor = module.float_scales
    return found
