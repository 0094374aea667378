"""Environment variables that tensor libraries read once, when they are loaded."""

from __future__ import annotations

import os

from workers import import_structure
from workers.contract import BY_BUS

ENVIRONMENT = {
    # A worker must not download anything or wait for the network.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_DEVICE_ORDER": BY_BUS,
    # How long OpenMP threads spin before they sleep. Endless spinning takes cores from the threads they wait for: a
    # step gets up to ten times slower once another program wants a core. Sleeping at once costs a third of a step on
    # an idle machine.
    "GOMP_SPINCOUNT": "1000",
}


def set_environment() -> None:
    """Set ENVIRONMENT's defaults, and spare transformers its search. Call it before tensor libraries are imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import_structure.install()
