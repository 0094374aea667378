"""Decides whether a profile fits a card, and which settings would, using `profiles.footprint`. (pure)

Never shortens sequences or shrinks groups: that would be a different experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from profiles import capture
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB, Demand, demand_of, work_of
from profiles.knobs import knobs, value_of, with_values
from profiles.rules import check
from profiles.schema import Profile
from profiles.shapes import Shape
from profiles.targets import own_targets, refusal

TIGHT = 0.9
"""Share of a card above which a plan is reported as tight: the estimate is accurate to about ten per cent."""
VLLM_WORKSPACE = int(1.5 * GIB)
"""Memory that vLLM needs besides weights and cache."""
SHORT = 64
"""Shortest useful prompt, and completion, in tokens."""
LEAST_SHARE = 0.05
"""Step by which vLLM's share of the card is reduced."""


@dataclass(frozen=True)
class Plan:
    """demand: at the largest shapes. usable_bytes: of the card; None if no card is known."""

    profile: Profile
    demand: Demand
    usable_bytes: int | None

    @property
    def fits(self) -> bool:
        return self.usable_bytes is None or self.demand.device <= self.usable_bytes

    @property
    def is_tight(self) -> bool:
        return self.fits and self.usable_bytes is not None and self.demand.device > TIGHT * self.usable_bytes


Changes = dict[str, Any]
"""Full knob name -> value."""


def refused_targets(profile: Profile, shape: Shape | None) -> LonghaulError | None:
    """The error for adapter targets that the model lacks; None if they are valid, or only the worker can tell."""
    if not profile.adapter.rank or shape is None or not shape.is_own:
        return None
    targets = own_targets(shape.architecture, profile.adapter.targets)
    unknown = [target for target in targets if target not in shape.linear]
    if not unknown:
        return None
    what, next_command = refusal(unknown, shape.linear)
    return LonghaulError(what, kept="nothing was started", next_command=next_command, exit_code=ExitCode.INPUT)


def plan_of(profile: Profile, shape: Shape, usable_bytes: int | None, card_bytes: int = 0) -> Plan:
    """card_bytes: total memory of the card, of which vLLM takes a share; limited by memory.cap_gib."""
    cap = int(profile.memory.cap_gib * GIB)
    if cap:
        usable_bytes = cap if usable_bytes is None else min(cap, usable_bytes)
        card_bytes = min(cap, card_bytes or cap)
    demand = demand_of(profile, shape, card_bytes=card_bytes or usable_bytes or 0)
    return Plan(profile, demand, usable_bytes)


def choose_engine(
    profile: Profile,
    shape: Shape | None,
    usable_bytes: int | None,
    *,
    has_vllm: bool,
    capability: tuple[int, int] | None = None,
) -> tuple[Profile, str]:
    """Resolve `sampling.engine = "auto"`, and say why. Leaves any other engine alone, without a message.

    Chooses `native` if it can capture its steps: it is the fastest engine measured and needs the least memory
    (docs/engines.md). Otherwise chooses `vllm` if it is installed and fits beside the trainer, or else decoding without
    captured steps. capability: of the GPU; None counts as new enough. The worker may still fall back to the plain
    decoder for reasons that only it sees (Triton, very many stop tokens), and logs that.
    """
    if profile.sampling.engine != "auto":
        return profile, ""
    plain = with_values(profile, _taken_by(profile, "native" if shape is None or shape.is_own else "hf"))
    if shape is None or usable_bytes is None or profile.run.device == "cpu":
        return plain, "no known GPU or model"
    against = _reason_against_capture(profile, shape, capability or capture.OLDEST)
    if not against:
        return plain, "captured steps, the fastest engine measured"
    if not has_vllm:
        return plain, f"{against}, and vLLM is not installed"
    with_vllm = with_values(profile, {"sampling.engine": "vllm"})
    is_too_old = (capability or capture.OLDEST) < capture.OLDEST and profile.vllm.dtype == "bfloat16"
    fits = plan_of(with_vllm, shape, usable_bytes).fits and vllm_holds(with_vllm, shape, usable_bytes)
    if is_too_old or not fits or check(with_vllm):
        return plain, f"{against}, and vLLM does not fit"
    return with_vllm, against


def _reason_against_capture(profile: Profile, shape: Shape, capability: tuple[int, int]) -> str:
    """Why `native` cannot decode with captured steps; empty if it can."""
    if not shape.is_captured:
        return "no captured steps for the model's architecture"
    reason = capture.reason_against(
        capability,
        profile.model.dtype,
        head_dims=shape.head_dims,
        heads=shape.num_attention_heads,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
    )
    return f"no captured steps: {reason}" if reason else ""


def vllm_holds(profile: Profile, shape: Shape, card_bytes: int) -> bool:
    """Whether vLLM's share holds its weights, which are never quantised, and all rollouts at full length."""
    each = 4 if profile.vllm.dtype == "float32" else 2
    work = work_of(profile, shape)
    rows = min(profile.vllm.max_num_seqs, work.rollout_rows)
    cache = 2 * each * shape.cache_width * (work.prompt_tokens + work.completion_tokens)
    share = profile.vllm.gpu_memory_utilization * card_bytes
    return each * shape.parameters + rows * cache + VLLM_WORKSPACE <= share


def nearest(
    profile: Profile, shape: Shape, usable_bytes: int, card_bytes: int = 0, *, is_new: bool = True
) -> Changes | None:
    """The settings that fit at the least cost in speed; None if none do.

    Tries in this order: no validation.overlap, no run.overlap, gradient checkpointing, smaller micro-batches, layers'
    inputs in host memory, fewer parallel rollouts, vLLM asleep, smaller or replaced, moments in 8 bits, moments in host
    memory. is_new: allow knobs that an existing run cannot change.
    """
    for alone, fixed, engine in product(_one_at_a_time(profile), _homes_of_moments(profile), _engines(profile)):
        base = with_values(profile, alone | fixed | engine)
        update = _first_that_fits(base, _updates(base), shape, usable_bytes, card_bytes, "update")
        rows = _first_that_fits(base, _rows(base), shape, usable_bytes, card_bytes, "rollout")
        if update is None or rows is None:
            continue
        wanted = alone | fixed | engine | update | rows
        found = {name: value for name, value in wanted.items() if value_of(profile, name) != value}
        is_allowed = is_new or all(knobs()[name].kind != "fixed" for name in found)
        if is_allowed and not check(with_values(profile, found)):
            return found
    return None


def least(profile: Profile, shape: Shape, usable_bytes: int, card_bytes: int = 0) -> Demand:
    """The demand with short sequences and the settings of `nearest` that need the least memory."""
    lengths = ("sampling.max_prompt_tokens", "sampling.max_completion_tokens")
    *_, alone = _one_at_a_time(profile)
    short = with_values(profile, alone | {name: min(SHORT, value_of(profile, name)) for name in lengths})
    demands = []
    for fixed, engine in product(_homes_of_moments(short), _engines(short)):
        base = with_values(short, fixed | engine)
        (*_, update), (*_, rows) = _updates(base), _rows(base)
        demands.append(plan_of(with_values(base, update | rows), shape, usable_bytes, card_bytes).demand)
    return min(demands, key=lambda demand: demand.device)


def _first_that_fits(
    base: Profile, choices: Iterator[Changes], shape: Shape, usable_bytes: int, card_bytes: int, part: str
) -> Changes | None:
    """part: `rollout`, or `update` for all other phases."""
    for changes in choices:
        devices = plan_of(with_values(base, changes), shape, usable_bytes, card_bytes).demand.devices
        mine = [size for phase, size in devices.items() if (phase == "rollout") == (part == "rollout")]
        if max(mine) <= usable_bytes:
            return changes
    return None


def _one_at_a_time(profile: Profile) -> Iterator[Changes]:
    """Without what overlaps, which costs the least speed. At first without a validation beside training."""
    off: Changes = {"validation.overlap": 0} if profile.validation.overlap else {}
    yield off
    if profile.run.overlap:
        yield off | {"run.overlap": 0, "run.sampler_device": ""}


def _homes_of_moments(profile: Profile) -> Iterator[Changes]:
    yield {}
    if profile.optimizer.kind == "adamw" and not profile.optimizer.offload:
        yield {"optimizer.kind": "adamw8bit"}
    if not profile.optimizer.offload:
        yield {"optimizer.kind": "adamw", "optimizer.offload": True}


def _engines(profile: Profile) -> Iterator[Changes]:
    yield {}
    if profile.sampling.engine != "vllm":
        return
    yield {"vllm.sleep": True}
    share = profile.vllm.gpu_memory_utilization - LEAST_SHARE
    while share > LEAST_SHARE:
        yield {"vllm.sleep": True, "vllm.gpu_memory_utilization": round(share, 2)}
        share -= LEAST_SHARE
    yield _taken_by(profile, "native")


def taken_by(profile: Profile, engine: str) -> Profile:
    """The profile with another engine."""
    return with_values(profile, _taken_by(profile, engine))


def _taken_by(profile: Profile, engine: str) -> Changes:
    """Select the engine, and remove it from the fallbacks, because no engine may be named twice."""
    others = tuple(name for name in profile.sampling.fallback if name != engine)
    return {"sampling.engine": engine, "sampling.fallback": others}


def _updates(profile: Profile) -> Iterator[Changes]:
    """Settings of the update, each needing less memory than the one before."""
    yield {}
    recomputed: Changes = {"model.gradient_checkpointing": True}
    if profile.model.keep_gib:
        recomputed |= {"model.keep_gib": 0.0}
    sizes = [profile.optimizer.micro_batch_size]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    sequence = profile.sampling.max_prompt_tokens + profile.sampling.max_completion_tokens
    for size in sizes:
        yield recomputed | {"optimizer.micro_batch_size": size}
    row_tokens = min(profile.optimizer.row_tokens, sequence)
    smallest = recomputed | {"optimizer.micro_batch_size": 1, "optimizer.row_tokens": row_tokens}
    yield smallest
    yield smallest | {"model.offload_inputs": True}


def _rows(profile: Profile) -> Iterator[Changes]:
    rows = profile.sampling.max_rows
    yield {}
    while rows > 1:
        rows = -(-rows // 2)
        yield {"sampling.max_rows": rows}
