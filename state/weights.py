"""The safetensors files of a model directory: which there must be, and whether each is whole, by its header alone.

Reads no tensor, so a model of 64 GB takes milliseconds. Needs no library: the master asks too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def shards(directory: Path) -> list[Path]:
    """Files that the index names, and those that are there; `model.safetensors` if there is neither.

    Raises ValueError if the index cannot be read.
    """
    named: set[str] = set()
    index = directory / INDEX
    if index.exists():
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index.name} has no weight_map: {error}") from error
    there = {path.name for path in directory.glob("*.safetensors")}
    return [directory / name for name in sorted(named | there) or [WEIGHTS]]


def fault_of(shard: Path) -> str:
    """Why a file is not a whole safetensors file, with its sizes; empty if it is."""
    try:
        there = shard.stat().st_size
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, there - LENGTH_BYTES):
                return f"is torn or no safetensors file: a header of {length} bytes in {there}"
            header: dict[str, Any] = json.loads(file.read(length))
        data = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return f"is no safetensors file: {error}"
    needed = LENGTH_BYTES + length + data
    return "" if there == needed else f"is torn: {there:,} bytes, and its header says {needed:,}"


def model_fault(directory: Path) -> tuple[str, str]:
    """The first file of a model directory that cannot be used, and why; two empty texts if there is none."""
    if not directory.is_dir():
        return str(directory), "is no directory here"
    for name in ("config.json", "tokenizer.json"):
        try:
            json.loads((directory / name).read_bytes())
        except FileNotFoundError:
            return str(directory / name), "is missing"
        except OSError as error:
            return str(directory / name), f"cannot be read: {error.strerror}"
        except ValueError as error:
            return str(directory / name), f"is not valid JSON: {error}"
    try:
        found = shards(directory)
    except ValueError as error:
        return str(directory / INDEX), str(error)
    for shard in found:
        if why := fault_of(shard):
            return str(shard), why
    return "", ""
