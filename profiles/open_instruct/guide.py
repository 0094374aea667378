"""The YAML that a profile names, read and held against what a start demands."""

from __future__ import annotations

import shlex
from pathlib import Path

from profiles.harmless import harmless, harmless_lines
from profiles.open_instruct.demands import problems
from profiles.open_instruct.document import Settings, read
from profiles.refusal import input_error
from profiles.schema import Run


def settings_to_start(guide: str, run: Run) -> Settings:
    """guide: `open_instruct.guide`. Raises LonghaulError (INPUT) with everything that stands against a start, and the
    command that corrects it."""
    where = f"--hosts {run.hosts} --gpus {run.gpus} --out DIR"
    if not guide:
        raise input_error(
            "open_instruct.guide names no YAML", f"python -m orchestrator plan --import FILE.yaml {where}"
        )
    path = Path(guide).expanduser()
    settings = read(path)
    if found := problems(settings, run):
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        lines = "\n".join(f"  {one}" for one in found)
        raise input_error(
            f"{harmless(str(path))} cannot be started, {count}\n{harmless_lines(lines)}",
            f"python -m orchestrator plan --import {shlex.quote(harmless(str(path)))} {where}",
        )
    return settings
