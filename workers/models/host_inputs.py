"""Inputs of layers in host memory, from the forward pass to the backward pass: for rows too long for the card."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HostInputs:
    """A stack: `append` in the forward pass, `pop` in the backward one. The bits stay the same.

    On a GPU the copies run on a stream of their own beside the layers, and the next input is fetched while one is used,
    so two of them are on the card. On a CPU it is a list.
    """

    def __init__(self, device: torch.device) -> None:
        self._kept: list[Tensor] = []
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device
        self._next: tuple[Tensor, Any] | None = None

    def append(self, one: Tensor) -> None:
        if self._stream is None:
            self._kept.append(one)
            return
        host = torch.empty(one.shape, dtype=one.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(one, non_blocking=True)
        one.record_stream(self._stream)  # its memory is not given away before the copy is done
        self._kept.append(host)

    def pop(self) -> Tensor:
        """Raises IndexError if nothing is left."""
        if self._stream is None:
            return self._kept.pop()
        found, is_there = self._next or self._fetched()
        self._next = self._fetched() if self._kept else None
        current = torch.cuda.current_stream(self._device)
        current.wait_event(is_there)
        found.record_stream(current)  # it was allocated on the other stream
        return found

    def _fetched(self) -> tuple[Tensor, Any]:
        """The last one on its way to the card, and the event that it is there."""
        with torch.cuda.stream(self._stream):
            found = self._kept.pop().to(self._device, non_blocking=True)
        return found, self._stream.record_event()
