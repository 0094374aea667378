"""Copies from the host to a GPU that do not wait for it."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(one: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`. The copy waits for its turn on the present stream, but the host goes on: after a copy
    from memory that is not pinned, it waits until the GPU has done everything before."""
    if device.type != "cuda" or one.is_cuda:
        return one.to(device)
    return one.pin_memory().to(device, non_blocking=True)
