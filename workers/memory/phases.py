"""The GPU's memory in a worker: measured phase by phase, held to the cap (`cap.py`), compared with what was expected.

A trainer needs two calls: `with memory.phase("rollout"):` around each part of a step, and `memory.take()` for the
step's metrics. What is done when memory runs out is `train.py`'s; a phase only marks the error with its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import FRAGMENTATION, GIB, GRAPH_BYTES, demand_of
from profiles.schema import Profile
from profiles.shapes import Shape, shape_of
from workers.failures import is_out_of_memory, mark_phase
from workers.memory import cap
from workers.memory import host as host_memory
from workers.memory.backoff import ROLLOUT

log = logging.getLogger("worker")

LEAK_BYTES = 16 << 20
"""What may be left over at the end of a phase without being told."""
SETTLED = 2
"""Steps after which everything that stays has been made: the moments come with the first update."""
TOLERANCE = 0.2
"""Share by which a peak may be off what was expected before that is told."""
SPARE = 0.9
"""Of the memory that this process may use, what is counted on: the rest is for a context and for the unforeseen."""


@dataclass(frozen=True)
class Reading:
    """Bytes: allocated now, but for what is there to stay; then, since the last reset, most allocated, most reserved,
    and in use on the device. held: what is there to stay."""

    allocated: int
    peak: int
    reserved: int
    device: int
    held: int = 0


class Gauge(Protocol):
    """Where figures come from."""

    unit: str
    """`allocated` bytes of a GPU, or `host` memory where there is none."""

    def reset(self) -> None: ...
    def read(self) -> Reading: ...


class CudaGauge:
    """PyTorch's allocator, and the driver's view of the whole card: contexts and child processes are in the latter."""

    unit = "allocated"

    def __init__(self, held: Callable[[], int] = lambda: 0) -> None:
        """held: bytes that are there to stay, and no leak however they grow."""
        self._held = held

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> Reading:
        free, total = torch.cuda.mem_get_info()
        held = self._held()
        return Reading(
            torch.cuda.memory_allocated() - held,
            torch.cuda.max_memory_allocated(),
            torch.cuda.max_memory_reserved(),
            total - free,
            held,
        )


class HostGauge:
    """Resident memory of this process, where the kernel tells it; the peak only where it lets itself be reset."""

    unit = "host"

    def reset(self) -> None:
        host_memory.reset_peak()

    def read(self) -> Reading:
        return Reading(*host_memory.resident_and_peak(), 0, 0)


@dataclass
class Peak:
    """The highest figures of a phase, and what was allocated and what held when it ended last."""

    allocated: int = 0
    reserved: int = 0
    device: int = 0
    left: int = 0
    held: int = 0

    def add(self, reading: Reading) -> None:
        self.allocated = max(self.allocated, reading.peak)
        self.reserved = max(self.reserved, reading.reserved)
        self.device = max(self.device, reading.device)
        self.left, self.held = reading.allocated, reading.held


@dataclass
class Memory:
    """Peaks of the phases of a step. expected: bytes of a phase's largest shapes, as the planner computes them."""

    gauge: Gauge
    warn: Callable[[str], None] = log.warning
    expected: Mapping[str, int] = field(default_factory=dict)
    _open: list[Peak] = field(default_factory=list)
    _peaks: dict[str, Peak] = field(default_factory=dict)
    _settled: dict[str, int] = field(default_factory=dict)
    _before_growth: dict[str, int] = field(default_factory=dict)
    _steps: int = 0
    _told: set[str] = field(default_factory=set)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block; an error that leaves it is marked with `name`. Phases may lie inside each other."""
        if self._open:
            self._open[-1].add(self.gauge.read())
        mine = Peak()
        self._open.append(mine)
        self.gauge.reset()
        try:
            yield
        except Exception as error:
            mark_phase(error, name)
            raise
        finally:
            reading = self.gauge.read()
            mine.add(reading)
            self._open.pop()
            for peak in (self._peaks.setdefault(name, Peak()), *self._open[-1:]):
                peak.add(Reading(reading.allocated, mine.allocated, mine.reserved, mine.device, reading.held))
            if self._open:
                self.gauge.reset()
            cap.tighten()

    def peaks(self) -> dict[str, Peak]:
        """Of the phases since the last `take` or `forget`."""
        return dict(self._peaks)

    def forget(self) -> None:
        """What was measured so far belongs to no step."""
        self._peaks.clear()

    def take(self) -> dict[str, float]:
        """The step's metrics, in bytes: `memory/PHASE/allocated`, `/reserved` and `/device`, or `/host`; `/expected`.

        Tells of what a phase left over, and of a peak that nobody expected.
        """
        metrics: dict[str, float] = {}
        is_gpu = self.gauge.unit == "allocated"
        for name, peak in self._peaks.items():
            metrics[f"memory/{name}/{self.gauge.unit}"] = peak.allocated
            if is_gpu:
                metrics |= {f"memory/{name}/reserved": peak.reserved, f"memory/{name}/device": peak.device}
                self._look_for_leak(name, peak.left)
            if is_gpu and (expected := self._expected(name, peak)):
                metrics[f"memory/{name}/expected"] = expected
                self._compare(name, peak.allocated, expected)
        self._steps += 1
        self.forget()
        return metrics

    def _look_for_leak(self, name: str, left: int) -> None:
        """A leak grows again; what grows once is a library's workspace on a stream that is new to it."""
        before = self._settled.get(name, left)
        if self._steps < SETTLED or name not in self._settled:
            self._settled[name] = left
        elif left > before + LEAK_BYTES:
            self._settled[name] = left
            if name in self._before_growth:
                self.warn(
                    f"{(left - self._before_growth[name]) >> 20} MiB more than in earlier steps are allocated after "
                    f"{name} ({left >> 20} MiB): if that continues, the GPU will run out of memory"
                )
            self._before_growth.setdefault(name, before)

    def _expected(self, name: str, peak: Peak) -> int:
        """With what is held while the trainer works, graphs and a cache, which no plan of it has. 0: not known."""
        expected = self.expected.get(name, 0)
        return expected + peak.held if expected and name != ROLLOUT else expected

    def _compare(self, name: str, measured: int, expected: int) -> None:
        """Less is no news: the steps' completions are seldom as long as they may be."""
        if measured > expected * (1 + TOLERANCE) and name not in self._told:
            self._told.add(name)
            self.warn(f"{name} took {measured / GIB:.2f} GiB, {expected / GIB:.2f} were expected")

    def rehearsed(self, moments: int) -> dict[str, Any]:
        """A `memory` event: what the largest shapes took since the last `forget`, beside what was expected of them.

        moments: bytes that the optimiser will add with the first update; the expectation has them already.
        """
        peaks = self.peaks()
        self.forget()
        told, facts = [], {}
        for name, peak in peaks.items():
            measured = peak.allocated
            told.append(f"{name} {measured / GIB:.2f} GiB")
            if self.gauge.unit == "allocated" and (expected := self._expected(name, peak)):
                facts[f"{name}_error"] = error = (measured + moments) / expected - 1
                told[-1] += f" (and {moments / GIB:.2f} of moments; {expected / GIB:.2f} were expected)"
                if abs(error) > TOLERANCE:
                    self.warn(f"the planner is off by {error:+.0%} for {name}: see the event `memory`")
        measured = max((peak.allocated for peak in peaks.values()), default=0)
        return {
            "text": f"the largest shapes took: {', '.join(told)}",
            "measured_bytes": float(measured),
            "expected_peak_bytes": float(measured + moments),
        } | facts


def memory_of(
    profile: Profile, model: Any, warn: Callable[[str], None] = log.warning, held: Callable[[], int] = lambda: 0
) -> Memory:
    """What measures a trainer of `model` under `profile`. held: as of `CudaGauge`."""
    if model.device.type != "cuda":
        return Memory(HostGauge(), warn)
    expected: Mapping[str, int] = {}
    with suppress(KeyError, AttributeError):  # an architecture whose sizes have other names
        expected = demand_of(profile, shape_of(model.config.to_dict())).phases
    return Memory(CudaGauge(held), warn, expected)


def room_beside_trainer(profile: Profile, shape: Shape, usable_bytes: int) -> int:
    """Bytes that an engine may keep while the trainer works: what the plan leaves of `usable_bytes`. (pure)"""
    demand = demand_of(profile, shape)
    phases = demand.phases
    trainer = max(
        FRAGMENTATION * phases[name] + demand.beside.get(name, 0) for name in ("score", "train") if name in phases
    )
    return max(0, int(SPARE * usable_bytes - trainer - GRAPH_BYTES))


Measured = Callable[[str], AbstractContextManager[None]]
"""Around a part of the work, by its name: `Memory.phase`."""


def unmeasured(name: str) -> AbstractContextManager[None]:
    """A part that nobody measures."""
    return nullcontext()


@contextmanager
def applied_once(what: str) -> Iterator[None]:
    """Around what changes the weights: when memory runs out in the middle of it, some of them are new, others old.

    Doing it again would apply those twice. So the attempt ends (CUDA_OOM), and the next one begins at the head.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise LonghaulError(
            f"the GPU ran out of memory in {what}: {error}",
            kept="the head; what this attempt did after it is repeated",
            next_command="python -m orchestrator run --set optimizer.kind=adamw8bit   (or optimizer.offload=true)",
            exit_code=ExitCode.CUDA_OOM,
        ) from error
