"""GPU memory in a worker: measured per phase, held to the cap (`cap.py`), compared with the plan.

A trainer needs two calls: `with memory.phase("rollout"):` around each part of a step, and `memory.take()` for the
step's metrics. `train.py` reacts to out-of-memory errors; a phase only adds its name to the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import BESIDE, FRAGMENTATION, GIB, GRAPH_BYTES, Demand, demand_of
from profiles.schema import Profile
from profiles.shapes import Shape, shape_of
from workers.failures import is_out_of_memory, mark_phase
from workers.memory import cap
from workers.memory import host as host_memory
from workers.memory.backoff import ROLLOUT

log = logging.getLogger("worker")

LEAK_BYTES = 16 << 20
"""Growth left at the end of a phase that is tolerated without a warning."""
SETTLED = 2
"""Steps after which everything permanent has been allocated: the moments come with the first update."""
TOLERANCE = 0.2
"""Share by which a peak may exceed the expected value before a warning."""
SPARE = 0.9
"""Share of this process's usable memory that plans count on; the rest is for a context and the unforeseen."""


@dataclass(frozen=True)
class Reading:
    """Bytes allocated now, without permanent ones; then, since the last reset, peak allocated, peak reserved, and in
    use on the device. held: the permanent ones."""

    allocated: int
    peak: int
    reserved: int
    device: int
    held: int = 0


class Gauge(Protocol):
    """A source of memory figures."""

    unit: str
    """`allocated` bytes of a GPU, or `host` memory without one."""

    def reset(self) -> None: ...
    def read(self) -> Reading: ...


class CudaGauge:
    """PyTorch's allocator, and the driver's view of the whole card, which includes contexts and child processes."""

    unit = "allocated"

    def __init__(self, held: Callable[[], int] = lambda: 0, device: torch.device | None = None) -> None:
        """held: permanent bytes, whose growth is not a leak. device: None: the current one."""
        self._held, self._device = held, device

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> Reading:
        free, total = torch.cuda.mem_get_info(self._device)
        held = self._held()
        return Reading(
            torch.cuda.memory_allocated(self._device) - held,
            torch.cuda.max_memory_allocated(self._device),
            torch.cuda.max_memory_reserved(self._device),
            total - free,
            held,
        )


class HostGauge:
    """Resident memory of this process; a peak only if the kernel lets it be reset."""

    unit = "host"

    def reset(self) -> None:
        host_memory.reset_peak()

    def read(self) -> Reading:
        return Reading(*host_memory.resident_and_peak(), 0, 0)


@dataclass
class Peak:
    """A phase's peaks, and what was allocated and held when it last ended."""

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
    """Peaks of a step's phases. expected: the planner's bytes for a phase's largest shapes. elsewhere: gauges of phases
    that another device computes."""

    gauge: Gauge
    warn: Callable[[str], None] = log.warning
    expected: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, Gauge] = field(default_factory=dict)
    _open: list[Peak] = field(default_factory=list)
    _peaks: dict[str, Peak] = field(default_factory=dict)
    _settled: dict[str, int] = field(default_factory=dict)
    _before_growth: dict[str, int] = field(default_factory=dict)
    _steps: int = 0
    _warned: set[str] = field(default_factory=set)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block, and mark an error that leaves it with `name`. Phases may be nested."""
        if (gauge := self.elsewhere.get(name)) is not None:
            with self._phase_elsewhere(name, gauge):
                yield
            return
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

    @contextmanager
    def _phase_elsewhere(self, name: str, gauge: Gauge) -> Iterator[None]:
        """It counts in no phase around it."""
        gauge.reset()
        try:
            yield
        except Exception as error:
            mark_phase(error, name)
            raise
        finally:
            self._peaks.setdefault(name, Peak()).add(gauge.read())

    def peaks(self) -> dict[str, Peak]:
        """Peaks of the phases since the last `take` or `forget`."""
        return dict(self._peaks)

    def forget(self) -> None:
        """Discard measurements that belong to no step."""
        self._peaks.clear()

    def take(self) -> dict[str, float]:
        """The step's metrics, in bytes: `memory/PHASE/allocated`, `/reserved` and `/device`, or `/host`; `/expected`.

        Warns of memory that a phase left behind, and of an unexpected peak.
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
        """Warn on repeated growth only; one-off growth is a library's workspace on a new stream, not a leak."""
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
        """The plan plus what is held while the trainer works (graphs, a cache), which plans exclude. 0: unknown."""
        expected = self.expected.get(name, 0)
        return expected + peak.held if expected and name != ROLLOUT else expected

    def _compare(self, name: str, measured: int, expected: int) -> None:
        """Warn only above the expected value: completions are seldom as long as they may be."""
        if measured > expected * (1 + TOLERANCE) and name not in self._warned:
            self._warned.add(name)
            self.warn(f"{name} took {measured / GIB:.2f} GiB, {expected / GIB:.2f} were expected")

    def rehearsed(self, moments: int) -> dict[str, Any]:
        """A `memory` event: what the largest shapes took since the last `forget`, beside the expected values.

        moments: bytes that the first update will add for the optimiser; the expected values already include them.
        """
        peaks = self.peaks()
        self.forget()
        parts, facts = [], {}
        for name, peak in peaks.items():
            measured = peak.allocated
            parts.append(f"{name} {measured / GIB:.2f} GiB")
            if self.gauge.unit == "allocated" and (expected := self._expected(name, peak)):
                facts[f"{name}_error"] = error = (measured + moments) / expected - 1
                parts[-1] += f" (and {moments / GIB:.2f} of moments; {expected / GIB:.2f} were expected)"
                if abs(error) > TOLERANCE:
                    self.warn(f"the planner is off by {error:+.0%} for {name}: see the event `memory`")
        measured = max((peak.allocated for peak in peaks.values()), default=0)
        return {
            "text": f"the largest shapes took: {', '.join(parts)}",
            "measured_bytes": float(measured),
            "expected_peak_bytes": float(measured + moments),
        } | facts


def memory_of(
    profile: Profile,
    model: Any,
    warn: Callable[[str], None] = log.warning,
    held: Callable[[], int] = lambda: 0,
    held_by_sampler: Callable[[], int] = lambda: 0,
) -> Memory:
    """Measures a trainer of `model` under `profile`, and rollouts on their own GPU. held, held_by_sampler: as in
    `CudaGauge`, of the trainer's device and of the other."""
    if model.device.type != "cuda":
        return Memory(HostGauge(), warn)
    expected: Mapping[str, int] = {}
    with suppress(KeyError, AttributeError):  # an architecture that names its sizes differently
        expected = expected_of(demand_of(profile, shape_of(model.config.to_dict())))
    elsewhere: Mapping[str, Gauge] = {}
    if profile.run.sampler_device:
        elsewhere = {ROLLOUT: CudaGauge(held_by_sampler, torch.device(profile.run.sampler_device))}
    return Memory(CudaGauge(held), warn, expected, elsewhere)


def expected_of(demand: Demand) -> dict[str, int]:
    """`Memory.expected`: bytes by phase, without a cache that is kept, which is measured. (pure)"""
    return {phase: held - demand.parts[phase].get(f"{BESIDE}cache", 0) for phase, held in demand.phases.items()}


def room_beside_trainer(profile: Profile, shape: Shape, usable_bytes: int, card_bytes: int = 0) -> int:
    """Bytes that an engine may keep while the trainer works: what the plan leaves. (pure)

    usable_bytes: of this process; card_bytes: of the whole card, which other processes of the run use too, 0 for as
    many.
    """
    demand, limits = demand_of(profile, shape), (usable_bytes, card_bytes)
    of_trainer = [name for name in ("score", "train") if name in demand.phases]
    left = min(_left(limits, demand.phases[name], demand.beside.get(name, 0)) for name in of_trainer)
    return max(0, int(left - GRAPH_BYTES))


def room_for_graphs(profile: Profile, shape: Shape, usable_bytes: int, card_bytes: int = 0) -> int:
    """Bytes that graphs of training passes may hold: of that room, what an engine and its graphs do not keep. (pure)"""
    limits, rollout = (usable_bytes, card_bytes), demand_of(profile, shape).parts["rollout"]
    room = room_beside_trainer(profile, shape, *limits)
    if profile.run.sampler_device:  # the engine has another card
        return room
    prompts = min(rollout.get("prompts", 0), room_for_prompt_graphs(profile, shape, *limits))
    cache = 0 if profile.run.overlap else rollout.get("cache", 0)  # with overlap it is part of the plan
    return max(0, room - prompts - (cache if cache <= room else 0))


def room_for_prompt_graphs(profile: Profile, shape: Shape, usable_bytes: int, card_bytes: int = 0) -> int:
    """Bytes that graphs of passes over prompts may hold beside all that is planned and a cache that stays. (pure)

    Not those of the plan: a pass of another shape, which is launched, takes them again.
    """
    demand = demand_of(profile, shape)
    kept = demand.parts["rollout"].get("cache", 0) + GRAPH_BYTES
    left = []
    for name, size in demand.phases.items():
        if name == "rollout" or not profile.run.sampler_device:  # a second card holds nothing but what draws
            is_without = name in ("score", "train") and not profile.run.overlap
            held = size + (kept if is_without else 0)
            left.append(_left((usable_bytes, card_bytes), held, demand.beside.get(name, 0)))
    return max(0, int(min(left) / FRAGMENTATION) - demand.parts["rollout"].get("dequantised", 0))


def _left(limits: tuple[int, int], allocated: int, beside: int) -> float:
    """Bytes of nine tenths of this process's memory, and of the card's, beside what the plan allocates. beside: what
    other processes of the run take of the card. Where this process has a cap of its own, they do not count for it."""
    usable, card = limits
    return min(SPARE * usable, SPARE * (card or usable) - beside) - FRAGMENTATION * allocated


Measured = Callable[[str], AbstractContextManager[None]]
"""Wraps a named part of the work: `Memory.phase`."""


def unmeasured(name: str) -> AbstractContextManager[None]:
    """A part that is not measured."""
    return nullcontext()


@contextmanager
def applied_once(what: str) -> Iterator[None]:
    """Wraps code that changes the weights. Running out of memory inside leaves some weights new and others old.

    Repeating it would apply the change twice to the new ones. So the attempt ends (CUDA_OOM), and the next starts from
    the head.
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
