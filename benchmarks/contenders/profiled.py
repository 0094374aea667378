"""Profiles our own step: kernel time by family in one rollout window and one training pass, and the CPU's work."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined, unused-ignore]
from torch.profiler import ProfilerActivity, profile

from benchmarks.contenders.ours import Session
from benchmarks.contenders.report import Meter
from benchmarks.contenders.workload import Workload

WINDOW = 64
"""Tokens of the profiled rollout: enough for a mean, few enough for a trace that fits in memory."""
FAMILIES = (
    ("4-bit matrix products and dequantisation", r"nf4|4bit|dequant|fp4"),
    ("optimiser", r"adam|multi_tensor"),
    ("attention", r"flash|fmha|attention|attend|sdpa|mha"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|cublas|xmma|\bmm\b|addmm|splitK|wgmma"),
    ("norms and softmax", r"norm|softmax|rsqrt"),
    ("sampling", r"sort|scan|cumsum|topk|multinomial|sample|searchsorted|argmax|gumbel"),
    ("sums", r"reduce|sum"),
    ("gather, scatter, copies", r"memcpy|memset|copy|index|gather|scatter|embedding|cat|fill"),
    ("elementwise", r"elementwise|mul|add|silu|sigmoid|rotary|rope|exp"),
    ("of torch.compile or Triton", r"triton"),
)
"""Family -> pattern in a kernel's name; the first match counts."""
LAUNCHING = 12
"""Number of CPU operations to list."""


def run(work: Workload, model: Path, engine: str, overrides: list[str], meter: Meter) -> None:
    session = Session(work, model, engine, overrides)
    short = replace(work, completion=min(WINDOW, work.completion))
    for step in (1, 2):  # to capture graphs and choose kernels
        rollouts = session.rollout(step)
        session.train(step, rollouts)
    rollouts = session.rollout(3)
    meter.report.tables = {
        "training pass": window(lambda: session.train(3, rollouts), lambda: session.train(4, rollouts), meter),
        f"rollout of {short.completion} tokens": decode_window(session, short, meter),
    }
    session.close()


def decode_window(session: Session, short: Workload, meter: Meter) -> dict[str, Any]:
    session.limit(short.completion)
    session.rollout(5)
    return window(lambda: session.rollout(6), lambda: session.rollout(7), meter)


def window(plain: Callable[[], Any], traced: Callable[[], Any], meter: Meter) -> dict[str, Any]:
    """Time `plain`, then the kernels of `traced`, which repeats the work under the profiler."""
    began = meter.now()
    plain()
    wall = meter.now() - began
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if meter.is_gpu else [])
    with profile(activities=kinds) as trace:
        began = meter.now()
        traced()
        profiled = meter.now() - began
    families: dict[str, dict[str, Any]] = {}
    count, busy = 0, 0.0
    for name, seconds, calls in kernels(trace, meter.is_gpu):
        one = families.setdefault(family_of(name), {"seconds": 0.0, "count": 0, "largest": "", "most": 0.0})
        one["seconds"] += seconds
        one["count"] += calls
        if seconds > one["most"]:
            one["most"], one["largest"] = seconds, name[:60]
        count, busy = count + calls, busy + seconds
    of = "kernels of the GPU" if meter.is_gpu else "operators on the CPU"
    return {
        "wall_s": wall,
        "profiled_s": profiled,
        "busy_s": busy,
        "count": count,
        "of": of,
        "families": families,
        "launching": launching(trace),
    }


def launching(trace: Any) -> list[dict[str, Any]]:
    """CPU operations with the most self time, without Python. The profiler inflates times, so compare only ratios."""
    found = [one for one in trace.key_averages() if one.device_type == DeviceType.CPU and one.self_cpu_time_total > 0]
    found.sort(key=lambda one: -one.self_cpu_time_total)
    return [
        {"name": one.key[:60], "seconds": one.self_cpu_time_total / 1e6, "count": one.count}
        for one in found[:LAUNCHING]
    ]


def kernels(trace: Any, is_gpu: bool) -> list[tuple[str, float, int]]:
    """Name, total seconds and number of calls of each kernel, or of each operator without a GPU."""
    found = []
    for one in trace.key_averages():
        if getattr(one, "is_user_annotation", False):
            continue
        if is_gpu and one.device_type == DeviceType.CUDA:
            found.append((one.key, one.self_device_time_total / 1e6, one.count))
        elif not is_gpu and one.self_cpu_time_total > 0:
            found.append((one.key, one.self_cpu_time_total / 1e6, one.count))
    return found


def family_of(kernel: str) -> str:
    """The family of a kernel, by its name. (pure)"""
    return next((name for name, words in FAMILIES if re.search(words, kernel, re.IGNORECASE)), "other")
