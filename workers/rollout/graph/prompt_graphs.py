"""Passes over prompts as CUDA graphs, for shapes whose time goes into launching kernels.

A graph serves one shape and writes into one cache, with which it goes. A pass that is launched has the same shape, so
whether there is a graph changes no number.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from workers.models import fast_graphs
from workers.models.fast_graphs import Recorder, Replay, has_room, recorded
from workers.models.host_copies import sent
from workers.models.lora import adapted_in
from workers.rollout.graph.capture import warming_stream

log = logging.getLogger("worker")


@dataclass
class Graph:
    """rows: what the graph reads. used: number of the last pass that used it."""

    rows: Tensor
    replay: Replay
    used: int = 0


class Passes:
    """Runs passes, as graphs where that saves time. `work` is one: it computes from its rows on the device, and from
    weights and a cache that keep their addresses. Of the weights, only the adapter's are watched."""

    def __init__(
        self,
        model: Any,
        work: Callable[[Tensor], None],
        most_tokens: int,
        record: Callable[[Callable[[], Any]], Replay] | None = None,
        measured: Callable[[Callable[[], Any]], tuple[bool, Any]] = fast_graphs.measured,
    ) -> None:
        """most_tokens: of a pass that may become a graph, with padding. record, measured: as in `Captured`; without
        `record`, graphs are CUDA's, and there are none on a CPU."""
        self._model, self._work, self._most_tokens, self._measured = model, work, most_tokens, measured
        if record is None and model.device.type == "cuda":
            # Not the stream on which training passes are captured. Products of all graphs of one stream share a
            # workspace of cuBLAS, and prompts may be read while another thread trains (run.overlap).
            record = Recorder(model.device, warming_stream(model.device))
        self._record, self._adapted = record, adapted_in(model)
        self._is_waiting: dict[tuple[int, ...], bool] = {}
        self._graphs: OrderedDict[tuple[int, ...], Graph] = OrderedDict()
        """Ordered by last use, the most recent last."""
        self._addresses: tuple[int, ...] = ()
        self._passes = 0

    def __call__(self, rows: Tensor) -> None:
        """rows: [R, N] on the host. Passes of one shape are alike."""
        self._passes += 1
        key, there = tuple(rows.shape), sent(rows, self._model.device)
        if (graph := self._found(there)) is not None:
            graph.rows.copy_(there)
            graph.replay()
            return
        # The first pass of all is not measured: it compiles kernels.
        if self._passes > 1 and key not in self._is_waiting and self._may_capture(rows):
            self._is_waiting[key], _ = self._measured(lambda: self._work(there))
        else:
            self._work(there)

    def _may_capture(self, rows: Tensor) -> bool:
        return self._record is not None and rows.numel() <= self._most_tokens and fast_graphs.may_capture(self._model)

    def _found(self, rows: Tensor) -> Graph | None:
        """The graph for a pass of this shape, or None to launch its kernels one by one."""
        key = tuple(rows.shape)
        if not self._is_waiting.get(key) or not self._may_capture(rows):
            return None
        addresses = tuple(one.data_ptr() for one in self._model.fast_runner.stack.matrices())
        if not addresses:  # passes without the adapter are rare
            return None
        if addresses != self._addresses:
            self._graphs.clear()
            self._addresses = addresses
        if key not in self._graphs:
            if not has_room(self._graphs, self._passes):
                return None
            try:
                self._graphs[key] = self._captured(rows)
            except RuntimeError as error:
                self._is_waiting[key] = False
                text = str(error).splitlines()[0]
                log.warning("prompts of %d x %d tokens are read without graphs: %s", *key, text)
                return None
        self._graphs.move_to_end(key)
        self._graphs[key].used = self._passes
        return self._graphs[key]

    def _captured(self, rows: Tensor) -> Graph:
        assert self._record is not None
        buffer = rows.clone()
        return Graph(buffer, recorded(self._record, self._adapted, partial(self._work, buffer)))
