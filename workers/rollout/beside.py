"""Rollouts beside an update (run.overlap): the engine that can draw them, and the CUDA stream on which it does.

Of the trainer's own device, or of the one that holds a copy of the policy (`sampler.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from profiles.errors import ExitCode, LonghaulError
from workers.failures import mark_phase
from workers.memory.backoff import ROLLOUT
from workers.models import lora
from workers.rollout.engine import RolloutEngine
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.native import NativeEngine


class RolloutStream:
    """A stream of its own for all rollouts, as their engine keeps a cache. Not opened, or without a GPU: that of
    everything."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._renew: Callable[[], None] = lambda: None

    def open(self, engine: RolloutEngine, device: torch.device, renew: Callable[[], None] = lambda: None) -> None:
        """device: of the weights that the engine reads. renew: brings them up to date, if they are a copy.

        Raises LonghaulError (INPUT) where another engine than our own draws: only ours reads weights without changing
        them."""
        if not isinstance(engine, NativeEngine | GraphEngine):
            raise LonghaulError(
                f"run.overlap needs our own rollout engine, and this model is drawn by {type(engine).__name__}",
                kept="the run, unchanged",
                next_command="python -m orchestrator run --run NEW-NAME --set run.overlap=0",
                exit_code=ExitCode.INPUT,
            )
        self._renew, self._device = renew, device
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Let rollouts read the present weights: renew a copy, and wait for what was asked for, which may write them.
        Call it while nothing is drawn."""
        self._renew()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, this thread draws on the stream, and the stream's device is the current one."""
        if self._stream is None:
            yield
            return
        with lora.copies_apart():
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                self._stream.synchronize()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """The same in a thread beside an update: without gradients, and an error counts as one of the rollouts."""
        try:
            with torch.no_grad(), self.drawing():
                yield
        except Exception as error:
            mark_phase(error, ROLLOUT)
            raise
