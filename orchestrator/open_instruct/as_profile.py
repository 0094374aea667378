"""The profiles that do what a YAML of open-instruct asks for, by verl or by itself. (pure, but for shipped profiles)

For verl, data and chat template are not taken over: a profile names files, not data sets of a hub.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.open_instruct.findings import Reading
from profiles.load import load_profile
from profiles.open_instruct.demands import FREQUENCY
from profiles.open_instruct.document import value
from profiles.open_instruct.options import UPSTREAM_COMMIT
from profiles.refusal import toml_text

CYCLE = 20
"""Steps between evaluations, or all where there are fewer."""
SAME = {
    "learning_rate": "optimizer.learning_rate",
    "clip_lower": "optimizer.clip_ratio_low",
    "clip_higher": "optimizer.clip_ratio_high",
    "temperature": "sampling.temperature",
    "seed": "run.seed",
}
"""Option -> knob of the same meaning, taken over where the file has the option."""


def base_of(reading: Reading) -> str:
    """The shipped profile that it starts from."""
    is_code = any(name.startswith("code_") for name in reading.settings)
    return "grpo-32b-code" if is_code else "grpo-32b-math"


def knobs_of(reading: Reading) -> dict[str, Any]:
    """Knob by its full name -> value."""
    settings, job = reading.corrected, reading.job
    assert job is not None and job.steps
    cycle = min(CYCLE, job.steps)
    return {
        "run.hosts": job.cluster.hosts,
        "run.gpus": job.cluster.gpus,
        "run.max_cycles": -(-job.steps // cycle),
        "run.steps_per_cycle": cycle,
        "run.checkpoint_every": min(cycle, settings.get("checkpoint_state_freq", cycle)),
        "model.path": job.model,
        "sampling.max_prompt_tokens": value(settings, "max_prompt_token_length"),
        "sampling.max_completion_tokens": value(settings, "response_length"),
        "verl.tokens_per_gpu": value(settings, "pack_length"),
        "grpo.groups_per_step": job.prompts,
        "grpo.group_size": job.samples,
        "grpo.kl_coef": float(value(settings, "beta")),
        **({"launch.time_limit_minutes": int(job.time.limit_s // 60)} if job.time else {}),
    } | {knob: settings[name] for name, knob in SAME.items() if name in settings}


def verl_toml(reading: Reading, source: str) -> str:
    """The profile's text. Raises LonghaulError (INPUT) where verl cannot divide the work as the file asks."""
    base, changed = base_of(reading), knobs_of(reading)
    load_profile(base, [f"{name}={toml_text(one)}" for name, one in changed.items()])
    lines = [f"# Made by `plan --import` from {source}. Its data sets are not taken over: data.tasks names a file.", ""]
    lines += [f'extends = "{base}"', ""]
    for section in dict.fromkeys(name.partition(".")[0] for name in changed):
        own = {name.partition(".")[2]: one for name, one in changed.items() if name.startswith(f"{section}.")}
        lines += [f"[{section}]", *(f"{key} = {toml_text(one)}" for key, one in own.items()), ""]
    return "\n".join(lines)


STEP_MIN_S = 1800.0
"""Shortest deadline of a step; the first has four times as long, for the start of open-instruct."""
OPEN_INSTRUCT = """\
# Made by `plan --import` from {source}: open-instruct itself trains.
# A run also needs open_instruct.source, a checkout at commit {commit}.

description = "GRPO by open-instruct"

[run]
worker = "open_instruct"
hosts = {hosts}
gpus = {gpus}
max_cycles = 1
steps_per_cycle = {steps}
checkpoint_every = {every}

[open_instruct]
guide = {guide}

[timeouts]
step_min_s = {step_min_s}
"""


def open_instruct_toml(reading: Reading, source: str, guide: Path) -> str:
    """The text of the profile that starts open-instruct. guide: the corrected YAML, absolute."""
    job = reading.job
    assert job is not None and job.steps
    return OPEN_INSTRUCT.format(
        source=source,
        commit=UPSTREAM_COMMIT,
        hosts=job.cluster.hosts,
        gpus=job.cluster.gpus,
        steps=job.steps,
        every=reading.corrected[FREQUENCY],
        guide=json.dumps(str(guide)),
        step_min_s=STEP_MIN_S,
    )
