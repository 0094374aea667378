"""A plan for several hosts as a person reads it, and as a program does. (pure)"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.cluster_plan import Job, Refusal, gib, gpus, is_tight, refusals
from orchestrator.display.wording import harmless
from orchestrator.job_time import in_jobs, time_facts
from profiles.footprint import GIB, Demand

WIDTH = 112
EXPLAINED: Mapping[str, str] = {
    "weights": "2 bytes a parameter (ZeRO-3) or 4 (FSDP2, which has no other copy), divided by the GPUs that train",
    "gradients": "4 bytes a parameter, divided",
    "master": "float32 copy of the weights, 4 bytes a parameter, divided (ZeRO-3)",
    "moments": "AdamW's two, 8 bytes a parameter, divided",
    "reference": "a second model for the KL, 2 bytes a parameter, divided",
    "gathered": "layers that a pass goes over, whole: 4.1 GB by DeepSpeed's defaults; FSDP2 8 bytes x the largest",
    "secondary copy": "ZeRO++ (deepspeed_zpg): 2 bytes a parameter, divided by zpg",
    "activations": "inputs of all blocks, 2 bytes x width x tokens, and 1.5 times one block in full",
    "logits": "10 bytes x vocabulary x positions; 5 without a gradient",
    "whole weights": "2 bytes a parameter on every GPU that trains, while they are handed to the engines",
    "largest tensor": "the embedding in 16 bits, and a copy",
}
"""Part of a plan -> how it is counted."""


def table(demand: Demand) -> str:
    """Phase by phase, in GiB: on the card, and what takes it, largest first."""
    devices = demand.devices
    lines = ["phase       on the card   what takes it (GiB)"]
    for phase, parts in demand.parts.items():
        named = {**parts, **({"rollout engine": beside} if (beside := demand.beside.get(phase)) else {})}
        largest = sorted(named.items(), key=lambda part: -part[1])
        said = ", ".join(f"{name} {gib(size)}" for name, size in largest if size >= GIB / 20)
        lines.append(f"{phase:<10}  {gib(devices[phase]):>11}   {said}")
    return "\n".join(lines)


def explanation(demand: Demand) -> str:
    """How each part of the table is counted."""
    parts = dict.fromkeys(name for each in demand.parts.values() for name in each)
    rest = f"on the card: {demand.fragmentation:g} times the sum, and {demand.context / GIB:.2f} GiB of context"
    return "\n".join([*(f"  {name:<15} {EXPLAINED[name]}" for name in parts), f"  {rest}"])


def head(job: Job) -> str:
    cluster = job.cluster
    where = (
        f"{cluster.hosts} hosts of {gpus(cluster.gpus)}" if cluster.hosts > 1 else f"one host of {gpus(cluster.gpus)}"
    )
    size = f"{job.shape.parameters / 1e9:.2f} billion parameters"
    return f"{harmless(job.model)}, {size}, by {job.engine} on {where} of {gib(cluster.card_bytes)} GiB"


def layout(job: Job) -> str:
    """Which GPUs do what."""
    engine, count = job.rollouts, job.sharding.shards
    engines = f"{engine.engines} engines of {gpus(engine.tensor_parallel)}"
    if job.shares_gpus:
        return f"all {count} GPUs train; in turn they are {engines} that draw rollouts"
    idle = job.cluster.size - count - engine.engines * engine.tensor_parallel
    return f"{count} GPUs train, {list(job.learners)}; {engines} draw rollouts; {idle} GPUs are idle"


def cache(job: Job) -> str:
    rows = job.cache_tokens // job.longest
    return f"an engine caches {job.cache_tokens:,} tokens at {job.rollouts.share:g}: {rows} rollouts of {job.longest:,}"


def steps(job: Job) -> str:
    """Steps of the run, and jobs that they take."""
    each = f"of {job.prompts} prompts x {job.samples} = {job.batch} rollouts"
    said = (
        f"steps {each}, as many as it takes"
        if job.steps is None
        else f"{job.steps:,} step{'s' * (job.steps != 1)} {each}"
    )
    time = job.time
    if time is None:
        return f"{said}; the time limit of a job is not known"
    return f"{said}; {in_jobs(time, job.steps)}"


def verdict(job: Job, refused: list[Refusal]) -> str:
    """`fits`, or why not; one line each."""
    if refused:
        return "refused:\n" + listed((one.about, one.text) for one in refused)
    demand, usable = job.demand, job.cluster.usable_bytes
    word = "fits, but is tight" if is_tight(job) else "fits"
    share = f"{demand.device / usable:.0%}"
    return f"{word}: {gib(demand.device)} of {gib(usable)} GiB usable on a GPU that trains ({share}), in {demand.worst}"


def plan_text(job: Job, *, explain: bool) -> str:
    """One job whole."""
    parts = [layout(job), table(job.demand)]
    if explain:
        parts.append(explanation(job.demand))
    return "\n".join([*parts, cache(job), steps(job), verdict(job, refusals(job))])


def listed(rows: Iterable[tuple[str, str]]) -> str:
    """Names with texts beside them, wrapped."""
    told = list(rows)
    width = max((len(name) for name, _ in told), default=0)
    lines = []
    for name, text in told:
        wrapped = textwrap.wrap(text, WIDTH - width - 4, break_on_hyphens=False)
        lines += [f"  {name if not at else '':<{width}}  {line}" for at, line in enumerate(wrapped)]
    return "\n".join(lines)


def facts(job: Job) -> Mapping[str, Any]:
    """The same for a program; bytes and seconds."""
    demand = job.demand
    return {
        "engine": job.engine,
        "model": job.model,
        "parameters": job.shape.parameters,
        "hosts": job.cluster.hosts,
        "gpus": job.cluster.gpus,
        "card_bytes": job.cluster.card_bytes,
        "usable_bytes": job.cluster.usable_bytes,
        "learners": list(job.learners),
        "engines": job.rollouts.engines,
        "tensor_parallel": job.rollouts.tensor_parallel,
        "cache_tokens": job.cache_tokens,
        "device_bytes": demand.device,
        "worst_phase": demand.worst,
        "phases": {
            phase: {"device": demand.devices[phase], "beside": demand.beside.get(phase, 0), "parts": dict(parts)}
            for phase, parts in demand.parts.items()
        },
        "batch": job.batch,
        **time_facts(job.time, job.steps),
        "refused": {one.about: one.text for one in refusals(job)},
    }
