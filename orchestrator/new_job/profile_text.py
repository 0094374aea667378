"""Writes the profile of a new job as commented TOML: only what differs, each line with its reason. (pure)"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from orchestrator.new_job.rewards import CORRECT
from orchestrator.new_job.settings import Job, Setting, Settings, rows_of
from profiles.harmless import harmless
from profiles.toml_value import toml_value

REASONS_AT = 36
"""Column at which reasons begin, unless a value is longer."""


def profile_text(job: Job, settings: Settings, function: str) -> str:
    """function: name of the one in the reward file."""
    where = "a CPU" if job.hardware.is_cpu else f"a card of {job.hardware.name.replace('gb', ' GB')}"
    head = [
        f"GRPO on {rows_of(job.looked)} of {harmless(job.data)}, with {harmless(job.model.name)}, on {where}.",
        f"It extends the shipped profile {settings.base} and has only what differs; docs/profiles.md lists all knobs.",
        f"Start:  python -m orchestrator run --profile {shlex.quote(f'./{job.profile_file.name}')}",
    ]
    lines = [*(f"# {line}" for line in head), "", f"extends = {toml_value(settings.base)}"]
    lines += [f"description = {toml_value(f'GRPO with {job.model.name} on own data')}", ""]
    for section, own in _by_section(settings.settings):
        others = _other_rewards(job, function) if section == "grpo" else []
        lines += [f"[{section}]", *map(_line, own), *others, ""]
    return "\n".join(lines)


def _by_section(settings: Iterable[Setting]) -> list[tuple[str, list[Setting]]]:
    """Sections in the order of their first setting, [grpo] always; a subsection comes after its own section."""
    found: dict[str, list[Setting]] = {}
    for one in settings:
        found.setdefault(one.knob.rpartition(".")[0], []).append(one)
    found.setdefault("grpo", [])
    order = list(dict.fromkeys(name.partition(".")[0] for name in found))
    return sorted(found.items(), key=lambda item: (order.index(item[0].partition(".")[0]), item[0]))


def _line(setting: Setting) -> str:
    text = f"{setting.knob.rpartition('.')[2]} = {toml_value(setting.value)}"
    return f"{text:<{REASONS_AT - 2}}  # {setting.reason}"


def _other_rewards(job: Job, function: str) -> list[str]:
    """What the reward could be besides, as comments."""
    names, own = job.reward.names, f"{job.reward_file}:{function}"
    if len(names) > 1:
        return [
            "# Weights of these parts, in their order:",
            f"# reward_weights = {toml_value([1.0, 0.5, *[0.25] * len(names)][: len(names)])}",
        ]
    if names == (CORRECT,) or job.mapping.answer:
        about, others = "Right answers, and your function from the reward file at half the weight:", (CORRECT, own)
    else:
        about, others = "A second function at half the weight:", (own, f"{job.reward_file}:short")
    return [f"# {about}", f"# rewards = {toml_value(others)}", "# reward_weights = [1.0, 0.5]"]
