"""Seconds of a step on CPU cores, for tiny models: processor time that was measured, scaled to this processor.

A fixed loop of Python, timed by its own processor time, says how fast a core is here; how much of a core a busy loop
gets says how busy the machine is.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

from profiles.footprint import group_of, rollouts_of
from profiles.schema import Profile

UNIT_S = 0.95e-3
"""Processor time of `_loop` on the machine of ROWS."""
TRIES = 9
LOOK_S = 0.2
USED_CORES = 1.3
"""Cores that a step keeps busy with two threads: what waits for one thread is the rest."""
WORST_FACTOR = 2.5
BUSY_PART = 0.65
"""On a busy machine a step takes this over `Processor.share` times as long: it has several processes, and so gets more
than one busy loop does. Fitted to four runs with shares of 9 to 31 %, which it meets within 50 %."""


@dataclass(frozen=True)
class CpuRow:
    """A profile whose steps were timed. cpu_s: processor seconds of a step, of all its processes."""

    profile: str
    worker: str
    model: str
    tokens: int
    """`tokens_of` the profile."""
    cpu_s: float


ROWS: tuple[CpuRow, ...] = (
    CpuRow("pocket", "azr", "pocket", 45_408, 1.606),
    CpuRow("pocket-debug", "azr", "pocket", 6_912, 0.603),
    CpuRow("pocket-grpo", "grpo", "pocket-words", 6_144, 0.267),
    CpuRow("pocket-grpo-debug", "grpo", "pocket-words", 896, 0.115),
    CpuRow("azr-0.5b-debug", "azr", "qwen2-tiny", 32_688, 1.99),
    CpuRow("grpo-1.5b-8gb-debug", "grpo", "qwen2-tiny", 960, 0.104),
)
"""`docs/measurements.md` says how: processor time of a run of many steps less that of one of few."""


@dataclass(frozen=True)
class Processor:
    """unit_s: processor time of the loop. share: of a core that a busy process gets now. cores: that we may use."""

    unit_s: float
    share: float
    cores: int


def this_processor() -> Processor:
    """Look at the processor for a quarter of a second."""
    times = []
    for _ in range(TRIES):
        begun = time.process_time()
        _loop()
        times.append(time.process_time() - begun)
    wall, own = time.monotonic(), time.process_time()
    while (passed := time.monotonic() - wall) < LOOK_S:
        pass
    share = min(1.0, max(0.01, (time.process_time() - own) / passed))
    return Processor(min(times), share, len(os.sched_getaffinity(0)))


def _loop() -> int:
    total, seen = 0, {}
    for number in range(20_000):
        total = (total * 31 + number) & 0xFFFF
        seen[total & 255] = number
    return total


def nearest(profile: Profile) -> CpuRow | None:
    """The measured profile that does the most similar work with the same model; None if there is none."""
    model = profile.model.path if profile.model.random_init == "off" else profile.model.random_init
    found = [row for row in ROWS if (row.worker, row.model) == (profile.run.worker, model)]
    return min(found, key=lambda row: abs(math.log(tokens_of(profile) / row.tokens)), default=None)


def tokens_of(profile: Profile) -> int:
    """Tokens of a step at full length; rollouts of one prompt share it."""
    sampling, rollouts = profile.sampling, rollouts_of(profile)
    prompts = math.ceil(rollouts / group_of(profile))
    return prompts * sampling.max_prompt_tokens + rollouts * sampling.max_completion_tokens


def seconds_of(profile: Profile, row: CpuRow, processor: Processor) -> float:
    """Seconds of a step on the machine as busy as it is now."""
    scale = tokens_of(profile) / row.tokens
    cores = min(processor.cores, profile.run.threads or processor.cores, 2)
    used = USED_CORES if cores > 1 else 1.0
    return row.cpu_s * scale * processor.unit_s / UNIT_S / used * max(1.0, BUSY_PART / processor.share)
