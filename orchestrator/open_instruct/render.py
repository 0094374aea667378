"""What an import writes and says for open-instruct: the corrected YAML, and where it can stop. (pure)"""

from __future__ import annotations

from typing import Any

from orchestrator.job_time import JobTime
from orchestrator.open_instruct.findings import Reading
from profiles.open_instruct.demands import FREQUENCY
from profiles.open_instruct.options import RENAMED, UPSTREAM_COMMIT

HEAD = """\
# open-instruct for {hosts} hosts of {gpus} GPUs, at commit {commit}.
# Made by `python -m orchestrator plan --import` from {source}, which is unchanged. What differs has its reason.
"""


def corrected_yaml(reading: Reading, source: str) -> str:
    """In upstream's names, with what was there before beside each changed line."""
    cluster, changes = reading.as_is.cluster, _changes(reading)
    own = {RENAMED.get(name, name): one for name, one in reading.settings.items()}
    lines = [HEAD.format(hosts=cluster.hosts, gpus=cluster.gpus, commit=UPSTREAM_COMMIT, source=source)]
    for name, one in reading.corrected.items():
        text = f"{name}: {_flow(one)}"
        if name in changes and own.get(name) != one:
            was = f"was {_flow(own[name])}" if name in own else "was not there"
            text += f"   # {was}: {changes[name]}"
        lines.append(f"{text}\n")
    return "".join(lines)


def _flow(one: Any) -> str:
    """A value on one line."""
    import yaml  # only an import needs it

    return str(yaml.safe_dump([one], default_flow_style=True, width=10_000, allow_unicode=True)[1:-2])


def _changes(reading: Reading) -> dict[str, str]:
    """Option -> name of the finding that changed it."""
    return {option: fault.name for fault in reading.faults for option in fault.becomes}


def stops(reading: Reading) -> str:
    """Where the corrected job can stop, and what a crash costs."""
    return stops_after(reading.corrected.get(FREQUENCY, 0), reading.as_is.time)


def stops_after(every: int, time: JobTime | None) -> str:
    """The same for a job that saves after `every` steps, in minutes where the time of a step is known."""
    steps = f"{every} step{'s' * (every != 1)}"
    if time is not None and time.step_s is not None:
        steps += f", {every * time.step_s / 60:.0f} min"
    return f"it can stop every {steps}, at its own checkpoints; lost work at most: {steps}"
