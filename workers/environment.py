"""What tensor libraries read in the environment once, when they are loaded."""

from __future__ import annotations

import os

from workers.contract import BY_BUS

ENVIRONMENT = {
    # Nothing may be downloaded by a worker, nor waited for.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_DEVICE_ORDER": BY_BUS,
    # How long tensor threads wait awake. Awake for ever they take the cores from those they wait for, and a step is up
    # to ten times slower as soon as another program wants a core; asleep at once they lose a third of a quiet step.
    "GOMP_SPINCOUNT": "1000",
}


def set_environment() -> None:
    """What tensor libraries read once, when they are loaded."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
