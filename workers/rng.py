"""Random streams: each draw belongs to (run seed, step, purpose), and what libraries keep globally is saved.

Streams that are derived need no state, so a resumed step draws what the lost one drew. The global generators are not
used by us, but a library may use them: their state is saved all the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any


def derive(seed: int, step: int, purpose: str, index: int = 0) -> int:
    """A 63-bit seed for one stream; equal arguments give equal seeds on every machine. (pure)"""
    text = f"{seed}/{step}/{purpose}/{index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, step: int, purpose: str) -> random.Random:
    """A generator of its own for one purpose of one step. (pure)"""
    return random.Random(derive(seed, step, purpose))


def seed_globals(seed: int) -> None:
    """Put every loaded library's global generator at the run's beginning. Done once in a run; later it is restored."""
    random.seed(derive(seed, 0, "python"))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(derive(seed, 0, "numpy") % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(derive(seed, 0, "torch"))


class GlobalGenerators:
    """State of the generators that libraries share: python, numpy, torch on the CPU and on each CUDA device."""

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
        # A run that moved to fewer devices keeps what fits; `status` then tells that resume is not bit-exact.
        for device, text in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(tensor(text), device)
