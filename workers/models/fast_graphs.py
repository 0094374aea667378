"""Passes through a `Stack` as CUDA graphs, where launching their kernels is what takes time.

A graph belongs to a shape: rows, and tokens of a row rounded up. What is read lies in buffers of its own, which a pass
is copied into; columns beyond the pass see themselves and are seen by nobody. Rows are as long where nothing is
captured, so that a pass has the same numbers either way.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workers.models.fast_layers import Given, fast_layers
from workers.models.fast_stack import Learnt, Plain, Stack
from workers.models.fused_layers import stream_dtype
from workers.models.lora import LoraLinear

log = logging.getLogger("worker")

ROUND = 128
"""Tokens that a row's length is rounded up to: more shapes would mean more graphs, longer rows more work."""
MOST_GRAPHS = 16
"""Shapes that have graphs at one time: each holds some 25 MiB for rows of 2,000 tokens."""
UNUSED = 200
"""Passes after which a shape that none of them had gives way to another. Making a graph takes longer than a pass
without one, so shapes must not take turns."""
WAITING = 1.3
"""A pass that takes the GPU less than so many times what launching it takes the processor waits for the processor."""


def enable(model: Any, *, with_graphs: bool) -> None:
    """Let passes of `model` go through a stack, where it is of that kind; to be called once it is on its device."""
    if (layers := fast_layers(model)) is not None:
        stack = Stack(layers)
        is_captured = with_graphs and model.device.type == "cuda"
        model.fast_runner = Captured(stack, model, Recorder(), measured) if is_captured else Plain(stack)


def may_capture(model: Any) -> bool:
    """Whether passes of `model` may be graphs, which hold memory of their own."""
    runner = getattr(model, "fast_runner", None)
    return isinstance(runner, Captured) and runner.may_capture


def held_bytes(model: Any) -> int:
    """Of the buffers of all graphs; more with each shape."""
    runner = getattr(model, "fast_runner", None)
    return runner.held_bytes if isinstance(runner, Captured) else 0


def allow(model: Any, with_graphs: bool) -> None:
    """Give back the memory of all graphs; new ones are made as `with_graphs` says."""
    if isinstance(runner := getattr(model, "fast_runner", None), Captured):
        runner.forget()
        runner.may_capture = with_graphs


Replay = Callable[[], None]


@dataclass
class Graphs:
    """Of one shape: buffers, and two graphs over them."""

    given: Given
    hidden: Tensor
    end: Tensor
    """What comes out, which is copied at once; later its gradient. Both are [R, T, H]."""
    forward: Replay
    backward: Replay
    used: int = 0
    """Number of the last pass that did."""

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return self.given.segments, self.given.cos, self.given.sin, self.hidden, self.end


class Captured:
    """Makes passes in padded rows."""

    def __init__(
        self,
        stack: Stack,
        model: nn.Module,
        record: Callable[[Callable[[], Any]], Replay],
        measured: Callable[[Callable[[], Any]], tuple[bool, Any]],
    ) -> None:
        """record: makes a graph of what a function launches; measured: calls a function, and says whether it waited for
        the processor."""
        self.stack, self._record, self._measured = stack, record, measured
        self.plain, self.may_capture = Plain(stack), True
        self._adapted = [module for module in model.modules() if isinstance(module, LoraLinear)]
        self._count: dict[tuple[int, ...], int] = {}
        self._is_waiting: dict[tuple[int, ...], bool] = {}
        self._graphs: OrderedDict[tuple[int, ...], Graphs] = OrderedDict()
        """Last comes what was used last."""
        self._passes = 0
        self._addresses: tuple[int, ...] = ()
        self._flat = torch.empty(0)
        """Gradients of all matrices, one after the other: where every graph leaves them."""
        self._open: Callable[[], Any] = lambda: None
        """The pass whose gradient is still to be asked for: what it keeps, lies where other graphs write."""

    def forget(self) -> None:
        """Shapes are looked at anew."""
        self._graphs.clear()
        self._is_waiting.clear()
        self._count.clear()
        self._addresses, self._flat = (), torch.empty(0)

    @property
    def held_bytes(self) -> int:
        each = [self._flat, *(one for graphs in self._graphs.values() for one in graphs.buffers)]
        return sum(one.numel() * one.element_size() for one in each)

    def score(self, given: Given, hidden: Tensor) -> Tensor:
        if (graphs := self._found(given, hidden)) is None:
            return self.plain.score(*padded(given, hidden))[:, : hidden.shape[1]]
        return self._replayed(graphs, given, hidden)

    def learn(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        length = hidden.shape[1]
        if (graphs := self._found(given, hidden)) is None:
            learnt, out = self._launched(*padded(given, hidden))
            return lambda grad: learnt(grown(grad, out.shape[1])), out[:, :length]

        def backward(grad: Tensor) -> Sequence[Tensor]:
            self._open = lambda: None
            graphs.end[:, length:] = 0
            graphs.end[:, :length].copy_(grad)
            graphs.backward()
            # A copy, for it becomes the gradient of the parameters, to which the next pass adds.
            return split(self._flat.clone(), self.stack.matrices())

        out = self._replayed(graphs, given, hidden)
        self._open = weakref.ref(backward)
        return backward, out

    def _replayed(self, graphs: Graphs, given: Given, hidden: Tensor) -> Tensor:
        fill(graphs.given, graphs.hidden, given, hidden)
        graphs.forward()
        return graphs.end[:, : hidden.shape[1]].clone()

    def _launched(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        """The second pass of a shape is timed; in the first, kernels are compiled and chosen."""
        key = key_of(hidden)
        self._count[key] = self._count.get(key, 0) + 1
        if self._count[key] != 2:
            return self.plain.learn(given, hidden)
        self._is_waiting[key], found = self._measured(lambda: self.plain.learn(given, hidden))
        learnt: tuple[Learnt, Tensor] = found
        return learnt

    def _found(self, given: Given, hidden: Tensor) -> Graphs | None:
        """The graphs of a pass's shape; None: it is to be launched."""
        key, matrices = key_of(hidden), self.stack.matrices()
        self._passes += 1
        # Without its adapter the model is seldom asked.
        if not self.may_capture or not matrices or not self._is_waiting.get(key) or self._open() is not None:
            return None
        addresses = tuple(matrix.data_ptr() for matrix in matrices)
        if addresses != self._addresses:
            self._graphs.clear()
            self._addresses, self._flat = addresses, matrices[0].new_empty(sum(one.numel() for one in matrices))
        if key not in self._graphs:
            if not self._is_room():
                return None
            try:
                self._graphs[key] = self._captured(given, hidden)
            except RuntimeError as error:
                self._is_waiting[key] = False
                log.warning("passes of %d x %d tokens stay without graphs: %s", *key, str(error).splitlines()[0])
                return None
        self._graphs.move_to_end(key)
        self._graphs[key].used = self._passes
        return self._graphs[key]

    def _is_room(self) -> bool:
        """For the graphs of one more shape; the one that was used longest ago may give way."""
        if len(self._graphs) < MOST_GRAPHS:
            return True
        oldest = next(iter(self._graphs))
        if is_unused := self._passes - self._graphs[oldest].used >= UNUSED:
            del self._graphs[oldest]
        return is_unused

    def _captured(self, given: Given, hidden: Tensor) -> Graphs:
        with torch.inference_mode(False), torch.no_grad():
            return self._with_buffers(*padded(given, hidden))

    def _with_buffers(self, given: Given, hidden: Tensor) -> Graphs:
        end, inputs = torch.zeros_like(hidden, dtype=stream_dtype(hidden.dtype)), list[Tensor]()
        parts = split(self._flat, self.stack.matrices())

        def forward() -> None:
            inputs.clear()
            end.copy_(self.stack.forward(given, hidden, inputs))

        def backward() -> None:
            for into, one in zip(parts, self.stack.backward(end, given, inputs), strict=True):
                into.copy_(one)

        return Graphs(given, hidden, end, forward=self._recorded(forward), backward=self._recorded(backward))

    def _recorded(self, work: Callable[[], None]) -> Replay:
        """A graph rounds the parameters itself, as they are others after each update; and while it is made, nothing is
        written, so that copies which were made then hold nothing."""
        self._forget_copies()
        try:
            return self._record(work)
        finally:
            self._forget_copies()

    def _forget_copies(self) -> None:
        for module in self._adapted:
            module.forget_copies()


def key_of(hidden: Tensor) -> tuple[int, ...]:
    """Rows, and tokens of a row rounded up. (pure)"""
    rows, length = hidden.shape[:2]
    return rows, -(-length // ROUND) * ROUND


def padded(given: Given, hidden: Tensor) -> tuple[Given, Tensor]:
    """A copy with rows as long as `key_of` says: columns beyond the pass see themselves, and nobody sees them."""
    rows, length = key_of(hidden)
    into = hidden.new_empty(rows, length, hidden.shape[2])
    angles = (one.new_zeros(one.shape[0], length, one.shape[2]) for one in (given.cos, given.sin))
    buffers = Given(given.segments.new_empty(rows, 1, length, 2), *angles)
    fill(buffers, into, given, hidden)
    return buffers, into


def grown(rows: Tensor, length: int) -> Tensor:
    """A copy of [R, T, ...] with zeros up to `length`."""
    found = rows.new_zeros(rows.shape[0], length, *rows.shape[2:])
    found[:, : rows.shape[1]] = rows
    return found


def fill(buffers: Given, into: Tensor, given: Given, hidden: Tensor) -> None:
    """Copy a pass into padded buffers."""
    length, longest = hidden.shape[1], into.shape[1]
    if length < longest:
        into[:, length:] = 0
        # Each of a segment of its own; a row of `packing.pack` has none below -1.
        buffers.segments.copy_(torch.arange(-2, -2 - longest, -1, device=into.device)[:, None])
    buffers.segments[:, :, :length].copy_(given.segments)
    for buffer, one in ((into, hidden), (buffers.cos, given.cos), (buffers.sin, given.sin)):
        buffer[:, :length].copy_(one)


def split(flat: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Views of `flat` in the shapes of the matrices."""
    parts = torch.split(flat, [one.numel() for one in matrices])
    return [part.view(one.shape) for part, one in zip(parts, matrices, strict=True)]


# --- on a GPU ------------------------------------------------------------------------------------------------------


class Recorder:
    """Makes CUDA graphs that share one pool of memory: they run one after the other."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def __call__(self, work: Callable[[], Any]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in self._made), None)  # of a graph that is there: a pool ends with its last
        # Of this thread alone: another may ask for memory meanwhile, and the backward pass runs in one of autograd's.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            work()
        self._made.add(graph)
        return graph.replay


def measured(work: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether launching `work` takes the processor about as long as `work` takes the GPU; and what it gives."""
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    began = time.perf_counter()
    found = work()
    launched = time.perf_counter() - began
    end.record()
    end.synchronize()
    return bool(begin.elapsed_time(end) / 1e3 < WAITING * launched), found
