"""Decode steps as CUDA graphs, one per number of rows. Without a GPU the same steps run without graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from workers.models.fast_graphs import CAPTURING, capture_stream
from workers.rollout.graph.lookup import Lanes
from workers.rollout.graph.state import State
from workers.rollout.graph.step import Operations, decode_step, lookup_step
from workers.rollout.graph.step_weights import Weights

Step = Callable[[], None]


class Steps:
    """`steps(rows)` is one decode step of the first `rows` slots. All graphs share one pool of memory."""

    def __init__(
        self,
        weights: Weights,
        state: State,
        ropes: Mapping[str, Tensor],
        ops: Operations,
        guesses: int = 0,
    ) -> None:
        """guesses: of each row, in a step that reads guesses."""
        self._weights, self._state, self._ropes, self._ops = weights, state, ropes, ops
        self._device = weights.embedding.device
        self._lanes = Lanes(state, guesses + 1) if guesses else None
        self._made: dict[tuple[int, bool, bool], Step] = {}
        self._pool: Any = None

    def __call__(self, rows: int) -> Step:
        return self._step(rows, False)

    def guessing(self, rows: int) -> Step:
        """A step of the first `rows` slots with guesses, once they are made from what the rows hold now."""
        assert self._lanes is not None
        step = self._step(rows, True)
        self._state.note_drawn(rows)
        self._ops.guess(self._lanes, self._state, rows)
        return step

    def _step(self, rows: int, has_guesses: bool) -> Step:
        key = rows, has_guesses, self._state.reads_together and not has_guesses
        if key not in self._made:
            plain = self._plain(rows, has_guesses)
            lanes = self._lanes.count if has_guesses and self._lanes is not None else 1
            self._made[key] = self._captured(plain, rows * lanes) if self._device.type == "cuda" else plain
        return self._made[key]

    def _plain(self, rows: int, has_guesses: bool) -> Step:
        if not has_guesses:
            ops = self._ops.of(self._weights, rows)
            return lambda: decode_step(self._weights, self._state, self._ropes, rows, ops)
        lanes = self._lanes
        assert lanes is not None
        ops = self._ops.of(self._weights, rows * lanes.count)
        return lambda: lookup_step(self._weights, lanes, self._state, self._ropes, rows, ops)

    def _captured(self, step: Step, rows: int) -> Step:
        active = self._state.active.clone()
        # With no active row nothing is drawn, and the next step overwrites whatever this writes into the caches.
        self._state.active.zero_()
        if self._lanes is not None:
            self._ops.guess(self._lanes, self._state, self._state.shape.slots)  # no lane is active either
        stream = warming_stream(self._device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()  # compiles kernels and lets libraries allocate their workspaces
        torch.cuda.current_stream().wait_stream(stream)
        self._ops.of(self._weights, rows).tune(self._weights, rows, step)
        graph = torch.cuda.CUDAGraph()
        # Only this thread: another may query an exchange with other GPUs meanwhile.
        on = capture_stream(self._device)
        with CAPTURING, torch.cuda.graph(graph, pool=self._pool, stream=on, capture_error_mode="thread_local"):
            step()
        self._pool = graph.pool()
        self._state.active.copy_(active)
        return graph.replay


@cache
def warming_stream(device: torch.device) -> Any:
    """The stream for trial steps, one per device. cuBLAS keeps a workspace (32 MiB on Hopper) for each stream it has
    seen, and PyTorch hands out 32 streams in turn."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
