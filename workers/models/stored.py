"""How a checkpoint's weights are stored, and whether they are read as they are, dequantised, or refused. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Reading = Literal["plain", "nf4", "dequantize"]
"""plain: floating point. nf4: read as they are. dequantize: floating point after loading."""

DEQUANTIZED = frozenset({"fp8", "mxfp4"})
"""Methods that transformers turns into floating point anywhere, also without a GPU."""
_ORIGINAL = "name the unquantised original in model.path (often the same name without -AWQ, -GPTQ or -Int4)"


def method_of(config: Mapping[str, Any]) -> str:
    """The method by which a checkpoint is quantised; empty if it is not."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return ""
    method = str(found.get("quant_method", ""))
    if not method and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        return "bitsandbytes"  # files before there was a name
    return method or "unnamed"


def reading_of(config: Mapping[str, Any], quantization: str) -> tuple[Reading, str]:
    """How to read the weights, and why not, empty if they can be read. quantization: of the profile."""
    method = method_of(config)
    if not method:
        return "plain", ""
    if method in DEQUANTIZED:
        return "dequantize", ""
    if method != "bitsandbytes":
        return "plain", f"is quantised by {method}, which is not read here: {_ORIGINAL}"
    found = config["quantization_config"]
    if not found.get("load_in_4bit") or found.get("bnb_4bit_quant_type", "fp4") != "nf4":
        return "plain", f"is quantised by bitsandbytes, but not in NF4: {_ORIGINAL}"
    if found.get("bnb_4bit_quant_storage", "uint8") != "uint8":
        return "plain", f"keeps its 4 bits in {found['bnb_4bit_quant_storage']}, not in bytes: {_ORIGINAL}"
    if quantization != "nf4":
        return "nf4", 'is quantised in NF4: set model.quantization = "nf4" and adapter.rank, or ' + _ORIGINAL
    return "nf4", ""


def without_quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the same model in floating point."""
    return {name: value for name, value in config.items() if name != "quantization_config"}
