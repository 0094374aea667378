"""Predicts a run: seconds a step and how they are known, memory of the host, disk; as lines and as facts."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.disk import Room
from orchestrator.display.wording import count, duration, size
from orchestrator.hours import cpu, gpu
from orchestrator.hours.cards import speed_of
from orchestrator.judging import ProfileVerdict, shape_for
from profiles.footprint import GIB, offloaded_bytes, trained_parameters
from profiles.schema import Profile
from profiles.shapes import Shape
from profiles.worker_kinds import worker_kind_of

SLEEPS = "it only sleeps"
LIKELY = 1.3
"""Factor between steps of a run, as answers grow longer."""
SHORT_ANSWERS = 4
"""A step whose answers end early takes this much less, at most, as far as one can say."""
WORKER_BYTES = int(1.4 * GIB)
"""Of a worker with PyTorch and its libraries on a GPU, beside weights; measured: 1.4 to 2.1 GiB."""
CPU_WORKER_BYTES = 900_000_000
"""Of a worker with a tiny model on the CPU; measured: 430 to 880 MB."""
STANDBY_BYTES = 350_000_000
SANDBOX_BYTES = 150_000_000
MASTER_BYTES = 60_000_000
STORE_BYTES_OF_STEP = 14_000
"""Growth of the store for each step, with its tasks and events; measured: 10 to 14 kB with `pocket`, 3 with GRPO."""


class Prediction(Struct, frozen=True):
    """step_s: None if nothing is known. low, high: of step_s, as far as one can say."""

    step_s: float | None
    low: float | None
    high: float | None
    basis: str
    """`this run`, `measured here`, `measured card`, `scaled, not measured`, `two steps`, or why nothing is known."""
    ram_bytes: int
    disk_bytes: int | None
    key: str = ""
    """Equal for profiles whose steps do the same work on the same machine."""
    at: float = 0.0


def key_of(profile: Profile, card: str) -> str:
    """Names the work of a step and the machine, in a few letters."""
    run = profile.run
    parts: list[object] = [run.worker, run.device, run.gpus, run.hosts, run.threads, run.deterministic]
    parts += [run.overlap, run.sampler_device] if run.overlap else []
    sections = (profile.model, profile.adapter, profile.sampling, profile.azr, profile.grpo, profile.data.names)
    sizes = (profile.optimizer.micro_batch_size, profile.optimizer.row_tokens, profile.optimizer.updates_per_step)
    text = msgspec.json.encode([parts, sections, sizes, card, os.uname().nodename, os.cpu_count()])
    return hashlib.sha256(text).hexdigest()[:16]


def predict(
    verdict: ProfileVerdict, room: Room, now: float, known: tuple[float, str] | None = None, card_name: str = ""
) -> Prediction:
    """known: seconds of a step that were measured, and where; they count more than any table. card_name: of a GPU that
    is not here."""
    profile, card = verdict.profile, verdict.machine.card
    name = card_name or (card.name if card is not None else "")
    step_s, low, high, basis = _step(profile, name) if known is None else _known(*known)
    disk = room.plan.total if room.plan is not None else None
    return Prediction(step_s, low, high, basis, ram_of(verdict), disk, key_of(profile, card.name if card else ""), now)


Step = tuple[float | None, float | None, float | None, str]
"""Seconds of a step, the least and the most that is likely, and how they are known."""


def _known(step_s: float, basis: str) -> Step:
    return step_s, step_s / LIKELY, step_s * LIKELY, basis


def _step(profile: Profile, card: str) -> Step:
    """By the tables. card: the GPU's name; empty: there is none."""
    kind = worker_kind_of(profile)
    if kind.has_own_engine:
        return None, None, None, "another program trains; --step-s tells"
    if not kind.uses_model:
        return profile.fake.step_s, profile.fake.step_s, 2 * profile.fake.step_s + 0.1, SLEEPS
    shape = shape_for(profile.model)
    if card and profile.run.device != "cpu" and shape is not None:
        return _on_gpu(profile, shape, card)
    if profile.run.device == "cuda":
        return None, None, None, "there is no GPU here; --card-name tells for one by name"
    return _on_cpu(profile)


def _on_gpu(profile: Profile, shape: Shape, card: str) -> Step:
    speed = speed_of(card)
    if speed is None:
        return None, None, None, f"{card} is not in the table of cards; --card-name or --measure tells"
    if profile.sampling.engine != "native":
        return None, None, None, f"the engine {profile.sampling.engine} was not measured; --measure tells"
    whole = gpu.step_of(profile, shape, speed).total
    off = 1 + gpu.WORST_ERROR if speed.is_measured else gpu.WORST_SCALED
    basis = f"by steps measured on {speed.name}" if speed.is_measured else f"scaled to {speed.name}, not measured"
    return whole, whole / off / SHORT_ANSWERS, whole * off, f"{basis}, every answer at full length"


def _on_cpu(profile: Profile) -> Step:
    row = cpu.nearest(profile)
    if row is None:
        return None, None, None, "no such model was measured on a CPU; --measure tells"
    processor = cpu.this_processor()
    step_s = cpu.seconds_of(profile, row, processor)
    basis = "scaled from another CPU, not measured"
    if processor.share < cpu.BUSY_PART:
        basis += f", as busy as now: a program gets {processor.share:.0%} of a core"
    return step_s, step_s / cpu.WORST_FACTOR, step_s * cpu.WORST_FACTOR, basis


def ram_of(verdict: ProfileVerdict) -> int:
    """Bytes of host memory of all processes, at the highest."""
    profile = verdict.profile
    kind = worker_kind_of(profile)
    workers = max(1, profile.run.gpus) + profile.validation.overlap  # one validates while the next cycle trains
    beside = STANDBY_BYTES + SANDBOX_BYTES + MASTER_BYTES
    if not kind.uses_model:
        return 100_000_000 + MASTER_BYTES
    shape = shape_for(profile.model)
    if profile.run.device == "cpu" or verdict.machine.card is None or shape is None:
        return CPU_WORKER_BYTES * workers + beside
    trained = trained_parameters(profile, shape)
    state = (12 if profile.adapter.rank else 8) * trained  # read back from a checkpoint
    if profile.optimizer.offload:
        state += 12 * trained
    state += offloaded_bytes(profile, shape)
    return int((WORKER_BYTES + 2 * shape.parameters + state) * workers) + beside


# --- as text ---------------------------------------------------------------------------------------------------------


def steps_in(profile: Profile) -> int | None:
    """Steps of the run, if the profile limits them."""
    run = profile.run
    return run.max_cycles * run.steps_per_cycle or None


def time_line(prediction: Prediction, steps: int | None) -> str:
    """One line about time. steps: of the run; without a limit, hours for a thousand are told. (pure)"""
    if prediction.step_s is None:
        return f"time: not known: {prediction.basis}"
    low, high = prediction.low or 0.0, prediction.high or math.inf
    told = steps or 1000
    span = "" if prediction.basis == SLEEPS else f" ({seconds(low)} to {seconds(high)})"
    return (
        f"time: {seconds(prediction.step_s)} a step{span}, {prediction.basis}; "
        f"{count(told)} step{'s' * (told != 1)} in {duration(told * prediction.step_s)} without validation"
    )


def seconds(value: float) -> str:
    """`0.35 s`, `2.1 s`, `1 m 10 s`."""
    return f"{value:.2g} s" if value < 9.95 else duration(value)


def growth(steps: int | None) -> str:
    """How the store grows, for `plan`. (pure)"""
    told = steps or 1000
    return f"store: grows by up to {size(STORE_BYTES_OF_STEP * told)} in {count(told)} steps"


def facts_of(prediction: Prediction, steps: int | None) -> Mapping[str, Any]:
    """The same for a program."""
    whole = msgspec.to_builtins(prediction)
    step_s = prediction.step_s
    return {**whole, "steps": steps, "seconds": step_s * steps if steps and step_s is not None else None}
