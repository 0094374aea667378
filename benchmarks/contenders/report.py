"""The report of one contender, measured in its own process: seconds by phase, memory peaks, versions."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.memory import host_peak, look_beside
from workers.memory import cap

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "trl", "vllm", "triton", "datasets")


@dataclass
class Report:
    """In bytes and seconds. `steps`: per timed step, the seconds of each phase, and of all under `step`."""

    contender: str
    group_size: int
    status: str = "failed"
    """`ok`, `out of memory` or `failed`."""
    reason: str = ""
    device: str = ""
    sampled: list[dict[str, int]] = field(default_factory=list)
    """For each of `steps`: `tokens` of all rows and of the `longest` one (its number of decode steps)."""
    steps: list[dict[str, float]] = field(default_factory=list)
    warmup: list[dict[str, float]] = field(default_factory=list)
    cold_start_s: float | None = None
    """Seconds from the start of the process to the end of its first step."""
    allocated: int | None = None
    """Peak of torch's allocator over the timed steps, like `reserved`; `peaks` has it by phase."""
    reserved: int | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    allocated_at_load: int | None = None
    """Peak until the end of the first step, including loading and warm-up."""
    context: int | None = None
    """Highest use of the GPU's memory outside the allocator."""
    limit: int | None = None
    """Limit of the allocator."""
    on_device: int | None = None
    """Peak of the whole GPU, sampled from outside."""
    host: int | None = None
    """Peak resident memory of the process."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Resolved settings of the contender."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The contender's own metrics of its last step."""
    tables: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class Meter:
    """Times phases, with the device synchronised between them, and fills a report."""

    def __init__(self, report: Report, began: float, cap_gib: float = 0.0) -> None:
        """began: wall-clock time of the process start. cap_gib: emulate a card of this size; 0 means no cap.

        Create it before anything else uses the GPU.
        """
        self.report, self._began = report, began
        self._phases: dict[str, float] = {}
        self._peaks: dict[str, int] = {}
        self._allocated = self._reserved = 0
        self.is_gpu = torch.cuda.is_available()
        report.versions = versions()
        report.device = platform.processor() or platform.machine()
        if not self.is_gpu:
            return
        cap.limit(cap_gib)
        report.device = torch.cuda.get_device_name()
        look_beside(self.report)

    def now(self) -> float:
        if self.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's seconds and memory peak to phase `name` of the current step."""
        began = self.now()
        self._note_peak("")
        yield
        self._note_peak(name)
        self._phases[name] = self._phases.get(name, 0.0) + self.now() - began

    def _note_peak(self, name: str) -> None:
        """Assign the allocator's peak since the last call to `name`, or only to the step without a name."""
        if not self.is_gpu:
            return
        look_beside(self.report)
        peak = torch.cuda.max_memory_allocated()
        self._allocated = max(self._allocated, peak)
        self._reserved = max(self._reserved, torch.cuda.max_memory_reserved())
        if name:
            self._peaks[name] = max(self._peaks.get(name, 0), peak)
        torch.cuda.reset_peak_memory_stats()

    def split(self, whole: str, part: str, rest: str) -> None:
        """Split phase `whole` of the current step into `part` and the remainder `rest`."""
        if whole in self._phases:
            self._phases[rest] = self._phases.pop(whole) - self._phases.get(part, 0.0)
        if whole in self._peaks:
            self._peaks[rest] = self._peaks.pop(whole)

    def end_step(self, seconds: float, *, timed: bool, lengths: Sequence[int]) -> None:
        """Record the total seconds of the current step. lengths: tokens of its completions."""
        self._note_peak("train" if "train" not in self._phases else "")
        phases, self._phases = self._phases, {}
        report = self.report
        phases.setdefault("train", max(0.0, seconds - sum(phases.values())))
        if report.cold_start_s is None:
            report.cold_start_s = time.time() - self._began
        (report.steps if timed else report.warmup).append(phases | {"step": seconds})
        if timed:
            report.sampled.append({"tokens": sum(lengths), "longest": max(lengths)})
        report.host = host_peak()
        if timed and self.is_gpu:
            report.allocated = max(report.allocated or 0, self._allocated)
            report.reserved = max(report.reserved or 0, self._reserved)
            for name, peak in self._peaks.items():
                report.peaks[name] = max(report.peaks.get(name, 0), peak)
        elif self.is_gpu:
            report.allocated_at_load = max(report.allocated_at_load or 0, self._allocated)
        self._allocated, self._reserved, self._peaks = 0, 0, {}


@dataclass
class Budget:
    """Stops after `steps` timed steps, or earlier once at least two took `seconds` together."""

    warmup: int
    steps: int
    seconds: float

    def is_timed(self, done: int) -> bool:
        """Whether the step after `done` others is timed."""
        return done >= self.warmup

    def is_spent(self, report: Report) -> bool:
        spent = sum(step["step"] for step in report.steps)
        return len(report.steps) >= self.steps or (len(report.steps) >= 2 and spent >= self.seconds)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["torch"] = str(torch.__version__)
    return found
