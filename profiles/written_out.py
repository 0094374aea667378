"""Decides which architectures the written-out layers and captured decode steps compute. (pure)

They are kernels of ours for a GPU. What they refuse, the plain decoder and packed rows compute, which call the model's
own modules.
"""

from __future__ import annotations

from profiles.architecture import supports as of_own_code
from profiles.description import Architecture

GATED = frozenset({"silu", "gelu_pytorch_tanh"})
"""Activations of a gate."""
ALONE = GATED | {"relu2", "xielu"}
"""Activations of an MLP without one."""


def supports(architecture: Architecture | None) -> str:
    """Why they cannot compute the model; empty if they can. Widths are judged by `capture.reason_against` and
    `attention.has_kernels`."""
    if architecture is None or not architecture.is_compared:
        return "it was never compared with its architecture"
    if reason := of_own_code(architecture):
        return reason
    if architecture.norm.kind != "rms":
        return architecture.text_of("norm")
    if architecture.activation not in (GATED if architecture.has_gate else ALONE):
        return architecture.text_of("activation")
    return ""
