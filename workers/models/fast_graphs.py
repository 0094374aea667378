"""Passes through a `Stack` as CUDA graphs, for shapes whose time goes into launching kernels.

A graph serves one shape: the number of rows, and their length rounded up. It reads buffers of its own, into which each
pass is copied. Padding columns see only themselves, and no token sees them. Passes without a graph pad their rows to
the same length, so results are the same either way.

What a graph writes stays where it is. So it adds an adapter's gradients to sums that stay as well. Where all weights
are trained, such sums would hold 4 bytes a weight while nothing trains. There each layer has a backward graph of its
own: it leaves one layer's gradients in a buffer that all layers share, and they are given on before the next replay.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from workers.models.attention import of_one_pass
from workers.models.fast_layers import Given, fast_layers
from workers.models.fast_stack import Learnt, Plain, Stack, Sums, Tape, give
from workers.models.fused_layers import stream_dtype
from workers.models.lora import LoraLinear, adapted_in

log = logging.getLogger("worker")

ROUND = 128
"""Row lengths are rounded up to a multiple of this. Smaller means more graphs, larger means more padding."""
MOST_GRAPHS = 16
"""Most shapes that hold graphs at one time. Each holds about 25 MiB for rows of 2,000 tokens."""
UNUSED = 200
"""A shape that no pass has used for this many passes may lose its graphs to a new shape. Capturing takes longer than a
pass without a graph, so shapes must not alternate."""
WAITING = 1.3
"""A pass is launch-bound if its GPU time is below this multiple of the CPU time for launching it."""


def enable(
    model: Any,
    *,
    with_graphs: bool,
    offloads_inputs: bool = False,
    kept_tokens: int = 0,
    most_tokens: int = sys.maxsize,
) -> None:
    """Run passes of `model` through a stack if its layers allow. Call it once the model is on its device.

    offloads_inputs: the inputs of layers wait in host memory, but for passes that are graphs: those are short.
    kept_tokens: of `Stack`. most_tokens: of a pass that may become a graph, which holds the memory of that pass."""
    if (layers := fast_layers(model)) is not None:
        stack = Stack(layers, kept_tokens)
        plain = Plain(stack, offloads_inputs=offloads_inputs)
        model.fast_runner = plain
        if with_graphs and model.device.type == "cuda":
            model.fast_runner = Captured(plain, model, Recorder(model.device), measured, most_tokens)


def may_capture(model: Any) -> bool:
    """Whether passes of `model` may become graphs, which hold memory of their own."""
    runner = getattr(model, "fast_runner", None)
    return isinstance(runner, Captured) and runner.may_capture


def held_bytes(model: Any) -> int:
    """Bytes held by the buffers of all graphs. They grow with each shape."""
    runner = getattr(model, "fast_runner", None)
    return runner.held_bytes if isinstance(runner, Captured) else 0


def allow(model: Any, with_graphs: bool) -> None:
    """Free the memory of all graphs. `with_graphs` says whether new ones may be captured."""
    if isinstance(runner := getattr(model, "fast_runner", None), Captured):
        runner.forget()
        runner.may_capture = with_graphs


Replay = Callable[[], None]


@dataclass
class Graphs:
    """The graphs of one shape: buffers, a forward graph and backward graphs over them."""

    given: Given
    hidden: Tensor
    """The embeddings; later their gradient, if they are trained. [R, T, H]"""
    end: Tensor
    """The result, which is copied out at once; later its gradient. [R, T, H]"""
    forward: Replay
    backward: Sequence[Replay]
    """One that adds all gradients to the sums; or one for each layer, the last first."""
    staged: Sequence[Sequence[Tensor]]
    """Where each of these leaves the gradients of its layer; empty with sums."""
    used: int = 0
    """Number of the last pass that used these graphs."""

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return *tensors_of(self.given), self.hidden, self.end


class Captured:
    """Runs passes in padded rows, as graphs where that saves time."""

    def __init__(
        self,
        plain: Plain,
        model: nn.Module,
        record: Callable[[Callable[[], Any]], Replay],
        measured: Callable[[Callable[[], Any]], tuple[bool, Any]],
        most_tokens: int = sys.maxsize,
    ) -> None:
        """record: captures what a function launches as a graph. measured: calls a function and returns whether it was
        launch-bound, and its result. most_tokens: as for `enable`."""
        self.plain, self.stack, self._record, self._measured = plain, plain.stack, record, measured
        self._most_tokens = most_tokens
        self.may_capture = True
        self._adapted = adapted_in(model)
        self._count: dict[tuple[int, ...], int] = {}
        self._is_waiting: dict[tuple[int, ...], bool] = {}
        """Whether passes of a shape are launch-bound."""
        self._waiting_tokens = 0
        """Those of the largest shape that is."""
        self._graphs: OrderedDict[tuple[int, ...], Graphs] = OrderedDict()
        """Ordered by last use, the most recent last."""
        self._passes = 0
        self._addresses: tuple[int, ...] = ()
        """Of the matrices that the graphs read."""
        self._sums: Sums | None = None
        """To which the graphs add an adapter's gradients."""
        self._staged: dict[Any, list[Tensor]] = {}
        """Shapes of a layer's matrices -> where the graphs of such layers leave their gradients."""
        self._open: Callable[[], Any] = lambda: None
        """The pass whose gradient is still to come. Another graph would overwrite its buffers."""

    def forget(self) -> None:
        """Drop all graphs and measure every shape again."""
        self._drop()
        self._is_waiting.clear()
        self._count.clear()
        self._waiting_tokens = 0

    def _drop(self) -> None:
        self._graphs.clear()
        self._staged.clear()

    @property
    def held_bytes(self) -> int:
        each = [one for graphs in self._graphs.values() for one in graphs.buffers]
        each += [one for staged in self._staged.values() for one in staged]
        return sum(one.numel() * one.element_size() for one in each)

    def score(self, given: Given, hidden: Tensor) -> Tensor:
        if (graphs := self._found(given, hidden)) is None:
            return self.plain.score(*padded(given, hidden))[:, : hidden.shape[1]]
        return self._replayed(graphs, given, hidden)

    def learn(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        length = hidden.shape[1]
        if (graphs := self._found(given, hidden)) is None:
            learnt, out = self._launched(*padded(given, hidden))

            def launched(grad: Tensor) -> tuple[Tensor | None, Sequence[Tensor | None]]:
                of_hidden, of_matrices = learnt(grown(grad, out.shape[1]))
                return None if of_hidden is None else of_hidden[:, :length], of_matrices

            return launched, out[:, :length]

        sums = self._sums

        def backward(grad: Tensor) -> tuple[Tensor | None, Sequence[Tensor | None]]:
            self._open = lambda: None
            graphs.end[:, length:] = 0
            graphs.end[:, :length].copy_(grad)
            if sums is not None:
                (replay,) = graphs.backward
                return None, sums.added(replay)
            numbers = reversed(range(len(self.stack)))
            for number, replay, staged in zip(numbers, graphs.backward, graphs.staged, strict=True):
                replay()
                # Copies: a hook may keep a gradient, and the next replay overwrites these.
                give(self.stack.matrices_of(number), (one.clone() for one in staged))
            return graphs.hidden[:, :length].clone(), ()

        out = self._replayed(graphs, given, hidden)
        self._open = weakref.ref(backward)
        return backward, out

    def _replayed(self, graphs: Graphs, given: Given, hidden: Tensor) -> Tensor:
        fill(graphs.given, graphs.hidden, given, hidden)
        graphs.forward()
        return graphs.end[:, : hidden.shape[1]].clone()

    def _launched(self, given: Given, hidden: Tensor) -> tuple[Learnt, Tensor]:
        """Run without a graph. The second pass of a shape is timed; the first still compiles and tunes kernels."""
        key = key_of(hidden)
        self._count[key] = self._count.get(key, 0) + 1
        if self._count[key] != 2 or key in self._is_waiting:
            return self.plain.learn(given, hidden)
        self._is_waiting[key], found = self._measured(lambda: self.plain.learn(given, hidden))
        if self._is_waiting[key]:
            self._waiting_tokens = max(self._waiting_tokens, math.prod(key))
        learnt: tuple[Learnt, Tensor] = found
        return learnt

    def _waits(self, key: tuple[int, ...]) -> bool:
        """Whether passes of this shape are known to be launch-bound. One with fewer tokens than another that is need
        not be timed, but its kernels must have been compiled."""
        if key not in self._is_waiting and key in self._count and math.prod(key) <= self._waiting_tokens:
            self._is_waiting[key] = True
        return self._is_waiting.get(key, False)

    def _found(self, given: Given, hidden: Tensor) -> Graphs | None:
        """The graphs for this pass's shape, or None to launch its kernels one by one."""
        key = key_of(hidden)
        self._passes += 1
        is_fit = self.may_capture and math.prod(key) <= self._most_tokens and self._waits(key)
        if not is_fit or self._open() is not None:
            return None
        if not (addresses := tuple(one.data_ptr() for one in self.stack.matrices())):
            return None  # passes without the adapter are rare, so they get no graphs
        if addresses != self._addresses:
            self._drop()
            self._addresses = addresses
            self._sums = None if self.stack.learns_all else self.stack.sums()
        if key not in self._graphs:
            if not has_room(self._graphs, self._passes):
                return None
            try:
                self._graphs[key] = self._captured(given, hidden)
            except RuntimeError as error:
                self._is_waiting[key] = False
                log.warning("passes of %d x %d tokens run without graphs: %s", *key, str(error).splitlines()[0])
                return None
        self._graphs.move_to_end(key)
        self._graphs[key].used = self._passes
        return self._graphs[key]

    def _captured(self, given: Given, hidden: Tensor) -> Graphs:
        with torch.inference_mode(False), torch.no_grad():
            return self._with_buffers(*padded(given, hidden))

    def _with_buffers(self, given: Given, hidden: Tensor) -> Graphs:
        end = torch.zeros_like(hidden, dtype=stream_dtype(hidden.dtype))
        tapes, grads, passes = list[Tape](), list[Tensor](), list[Given]()
        record, last = partial(recorded, self._record, self._adapted), len(self.stack) - 1
        # What stays is made before anything is captured, outside the memory of graphs.
        numbers = range(last, -1, -1) if self.stack.learns_all else []
        staged = [self._staged_of(number) for number in numbers]
        parts = [] if self._sums is None else self._sums.parts

        def forward() -> None:
            # The graph itself makes the lists of blocks, of the segments that each replay finds in the buffer.
            passes[:] = [replace(given, segments=of_one_pass(given.segments))]
            tapes[:] = [Tape(list[Tensor]())]
            end.copy_(self.stack.forward(passes[0], hidden, tapes[0]))

        def of_adapter() -> None:
            torch._foreach_add_(parts, self.stack.backward(end, passes.pop(), tapes.pop()))

        def of_layer(number: int) -> None:
            grad = end if number == last else grads.pop()
            found, grad = self.stack.backward_of(number, grad, passes[0], tapes[0])
            torch._foreach_copy_(staged[last - number], found)
            if number:
                grads.append(grad)
            else:
                hidden.copy_(grad)
                tapes.clear()
                passes.clear()

        works: list[Callable[[], None]] = [partial(of_layer, number) for number in numbers]
        works = works or [of_adapter]
        return Graphs(given, hidden, end, record(forward), [record(work) for work in works], staged)

    def _staged_of(self, number: int) -> list[Tensor]:
        """Where backward graphs leave the gradients of this layer, and of all with matrices of these shapes."""
        matrices = self.stack.matrices_of(number)
        key = tuple((one.shape, one.dtype) for one in matrices)
        if key not in self._staged:
            self._staged[key] = [torch.empty_like(one, requires_grad=False) for one in matrices]
        return self._staged[key]


def has_room(graphs: OrderedDict[tuple[int, ...], Any], passes: int) -> bool:
    """Whether one more shape may have graphs; drops the least recently used shape if it has been idle long enough.

    graphs: by shape, ordered by last use, each with `used`, the number of the pass that used it last. passes: how many
    there have been so far."""
    if len(graphs) < MOST_GRAPHS:
        return True
    oldest = next(iter(graphs))
    is_unused: bool = passes - graphs[oldest].used >= UNUSED
    if is_unused:
        del graphs[oldest]
    return is_unused


def recorded(
    record: Callable[[Callable[[], Any]], Replay], adapted: Sequence[LoraLinear], work: Callable[[], None]
) -> Replay:
    """Capture `work`. The cast copies of the adapters' matrices are dropped before, because the graph must cast them
    itself: they change with each update. They are dropped again after, because capturing executes nothing, so copies
    made then hold no values."""

    def forget_copies() -> None:
        for module in adapted:
            module.forget_copies()

    forget_copies()
    try:
        return record(work)
    finally:
        forget_copies()


def key_of(hidden: Tensor) -> tuple[int, ...]:
    """Number of rows, and row length rounded up to `ROUND`. (pure)"""
    rows, length = hidden.shape[:2]
    return rows, rounded(length)


def rounded(length: int) -> int:
    """A row's length in a pass. (pure)"""
    return -(-length // ROUND) * ROUND


def padded(given: Given, hidden: Tensor) -> tuple[Given, Tensor]:
    """A copy with rows as long as `key_of` says. Padding columns see only themselves, and no token sees them."""
    rows, length = key_of(hidden)
    into = hidden.new_empty(rows, length, hidden.shape[2])
    angles = {name: one.new_zeros(2, one.shape[1], length, one.shape[3]) for name, one in given.angles.items()}
    growth = None if given.growth is None else given.growth.new_zeros(given.growth.shape[0], length)
    segments = of_one_pass(given.segments.new_empty(rows, 1, length, given.segments.shape[-1]))
    buffers = Given(segments, angles, growth, given.in_fp8)
    fill(buffers, into, given, hidden)
    return buffers, into


def tensors_of(given: Given) -> list[Tensor]:
    return [given.segments, *given.angles.values(), *([] if given.growth is None else [given.growth])]


def grown(rows: Tensor, length: int) -> Tensor:
    """A copy of [R, T, ...], padded with zeros to `length`."""
    found = rows.new_zeros(rows.shape[0], length, *rows.shape[2:])
    found[:, : rows.shape[1]] = rows
    return found


def fill(buffers: Given, into: Tensor, given: Given, hidden: Tensor) -> None:
    """Copy a pass into padded buffers."""
    length, longest = hidden.shape[1], into.shape[1]
    if length < longest:
        into[:, length:] = 0
        # Each padding column gets a segment of its own; `packing.pack` uses none below -1.
        buffers.segments.copy_(torch.arange(-2, -2 - longest, -1, device=into.device)[:, None])
    buffers.segments[:, :, :length].copy_(given.segments)
    into[:, :length].copy_(hidden)
    for name, one in given.angles.items():
        buffers.angles[name][:, :, :length].copy_(one)
    if buffers.growth is not None and given.growth is not None:
        buffers.growth[:, :length].copy_(given.growth)


# --- on a GPU ------------------------------------------------------------------------------------------------------


CAPTURING = threading.Lock()
"""Held while a graph is captured: the begin of another thread's capture, or its wait for the whole device, would end
it."""


@cache
def capture_stream(device: torch.device) -> Any:
    """The stream on which graphs of a device are captured: PyTorch's own belongs to the device of the first capture."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Recorder:
    """Captures CUDA graphs that share one memory pool. They may, because they never run at the same time."""

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        """stream: on which it captures; None: `capture_stream`."""
        self._device, self._stream = device, stream
        self._made: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def __call__(self, work: Callable[[], Any]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in self._made), None)  # of a live graph: a pool dies with its last graph
        # Only this thread: others may allocate meanwhile, and the backward pass runs in a thread of autograd's.
        stream = self._stream or capture_stream(self._device)
        with CAPTURING, torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
        self._made.add(graph)
        return graph.replay


def measured(work: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether `work` is launch-bound (launching takes about as long as it runs on the GPU), and its result."""
    event: Any = torch.cuda.Event
    begin, end = (event(enable_timing=True) for _ in range(2))
    with CAPTURING:
        torch.cuda.synchronize()
    begin.record()
    began = time.perf_counter()
    found = work()
    launched = time.perf_counter() - began
    end.record()
    end.synchronize()
    return bool(begin.elapsed_time(end) / 1e3 < WAITING * launched), found
