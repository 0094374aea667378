"""The base model in 4 bits (NF4, QLoRA: arXiv 2305.14314), through bitsandbytes where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from profiles.errors import ExitCode, LonghaulError


def require(library: str, knob: str) -> None:
    """Raises LonghaulError (INPUT) where a library that the profile needs is not installed."""
    if importlib.util.find_spec(library) is None:
        raise LonghaulError(
            f"{knob} needs {library}, which is not installed",
            kept="the run, as it is",
            next_command=f"pip install -c constraints.txt {library}",
            exit_code=ExitCode.INPUT,
        )


def nf4_config(dtype: str) -> Any:
    """What transformers reads: linear layers in NF4 with quantised scales; embedding, head and norms stay in dtype."""
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
    """Switch off a kernel of some CPUs: it repacks the weights at the first rollout, and has no backward."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
