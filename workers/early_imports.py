"""Imports that only some profiles need, done by a worker that waits for its task."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

from workers.contract import NEEDS_VARIABLE, Need

MODULES = {
    # What bitsandbytes takes .9 s to import. It itself follows with the model: it asks each GPU for its properties.
    Need.BITSANDBYTES: ("torch._inductor.compile_fx",),
    Need.GPU: (
        "workers.rollout.graph.cuda_step",
        "workers.models.attention_kernels",
        "workers.models.layer_kernels",
        "workers.loss.fused_triton",
    ),
}
"""None of them opens a GPU: until its task begins, a worker takes no memory there."""


def import_early() -> None:
    """Import what the master names. What is not installed is left to the task, which says so where it matters."""
    for need in filter(None, os.environ.get(NEEDS_VARIABLE, "").split(",")):
        for module in MODULES[Need(need)]:
            with suppress(ImportError):
                importlib.import_module(module)
        if need == Need.GPU:
            with suppress(ImportError):
                hash_triton()


def hash_triton() -> None:
    """Let Triton hash its own 500 MB, which it does once in a process, before its first kernel."""
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        from triton.compiler.compiler import triton_key
    triton_key()
