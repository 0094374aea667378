"""Random streams derived from (run seed, step, purpose), and the saved state of libraries' global generators.

Derived streams have no state to save, so a resumed step repeats the draws of the lost one. We do not use the global
generators, but a library may, so their state is saved as well.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any


def derive(seed: int, step: int, purpose: str, index: int = 0) -> int:
    """A 63-bit seed for one stream. Equal arguments give equal seeds on every machine. (pure)"""
    text = f"{seed}/{step}/{purpose}/{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, step: int, purpose: str) -> random.Random:
    """An independent generator for one purpose of one step. (pure)"""
    return random.Random(derive(seed, step, purpose))


def seed_globals(seed: int) -> None:
    """Seed the global generators of all loaded libraries. Called once per run; a resume restores their state."""
    random.seed(derive(seed, 0, "python"))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(derive(seed, 0, "numpy") % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(derive(seed, 0, "torch"))


class GlobalGenerators:
    """Saves and loads the state of the global generators: Python, NumPy, torch on the CPU and on each CUDA device."""

    filename = "rng.json"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._state(), sort_keys=True))

    def load(self, path: Path) -> None:
        state: dict[str, Any] = json.loads(path.read_text())
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        if "numpy" in state:
            import numpy

            name, keys, position, has_gauss, cached = state["numpy"]
            numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
        if "torch" in state:
            _load_torch(state["torch"])

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"python": random.getstate()}
        if (numpy := sys.modules.get("numpy")) is not None:
            name, keys, position, has_gauss, cached = numpy.random.get_state()
            state["numpy"] = [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
        if (torch := sys.modules.get("torch")) is not None:
            cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
            state["torch"] = {
                "cpu": bytes(torch.get_rng_state().tolist()).hex(),
                "cuda": [bytes(one.tolist()).hex() for one in cuda],
            }
        return state


def _load_torch(state: dict[str, Any]) -> None:
    import torch

    def tensor(text: str) -> torch.Tensor:
        return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)

    torch.set_rng_state(tensor(state["cpu"]))
    if torch.cuda.is_available():
        # A run that moved to fewer devices restores only those; `status` then reports that resume is not bit-exact.
        for device, text in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(tensor(text), device)
