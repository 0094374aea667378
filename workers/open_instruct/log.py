"""What open-instruct prints, as our steps. (pure, but for `Tail`, which reads the file)

Its metrics of a step are one panel of rich, with two decimals: a row for each first part of a name, such as
`│ time  total: 12.34 | training: 8.01 │`. With a wide enough terminal (WIDTH) no row is wrapped. A saved checkpoint is
a line of its logger. Model output may be in the same log, so both count only where they begin a line, and no step
counts twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from profiles.metrics import STEPS_PER_SECOND

WIDTH = 9999
"""Columns that rich is told to have."""
LONGEST_LINE = 1 << 20
"""Bytes; a longer line is no line of metrics."""
STEP = "training_step"
RATE_STEPS = 20
"""Steps over which `steps_per_second` is taken."""
NAMES: Mapping[str, str] = {
    "scores": "reward",
    "val/sequence_lengths": "tokens_mean",
    "lr": "learning_rate",
    "loss/total_avg": "loss",
    "optim/grad_norm": "grad_norm",
    "policy/entropy_avg": "entropy",
    "policy/clipfrac_avg": "clip_fraction",
    "objective/kl2_avg": "kl",
    "time/total": "seconds",
    "time/group_generation_max": "seconds/rollout",
    "time/training": "seconds/update",
    "time/trainer_waiting_for_data": "seconds/waiting",
    "time/weight_sync": "seconds/sync",
    "time/saving": "seconds/checkpoint",
}
"""Its name -> ours (profiles/metrics.py)."""
_TOP = re.compile(r"╭─+ Metrics ─+╮\s*")
_ROW = re.compile(r"│ +(\S+) +(\S.*?) *│\s*")
_BOTTOM = re.compile(r"╰─+╯\s*")
_SAVED = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d - INFO - grpo_fast\.py:\d+ - Saved checkpoint state at step (\d{1,9}) to .+"
)


@dataclass(frozen=True)
class Step:
    """A finished step. data: all numbers that its panel has, by open-instruct's names."""

    number: int
    data: Mapping[str, float]


@dataclass(frozen=True)
class Saved:
    """All ranks have written the state of this step."""

    step: int


class Parser:
    """Lines in, facts out. A line that is not understood changes nothing."""

    def __init__(self) -> None:
        self._panel: dict[str, float] | None = None
        """Numbers of the panel that is being read."""

    def take(self, line: str) -> Step | Saved | None:
        """What this line completes."""
        if _TOP.fullmatch(line):
            self._panel = {}
        elif found := _SAVED.fullmatch(line.rstrip()):
            return Saved(int(found[1]))
        elif self._panel is not None and (row := _ROW.fullmatch(line)):
            self._panel |= _numbers(row[1], row[2])
        elif self._panel is not None and _BOTTOM.fullmatch(line):
            panel, self._panel = self._panel, None
            number = panel.pop(STEP, 0.0)
            if 1 <= number < 1e9 and number == int(number):  # the panel of an evaluation has none
                return Step(int(number), panel)
        return None


def _numbers(category: str, text: str) -> dict[str, float]:
    """The values of a row. What has no category of its own is in `other`, by its plain name."""
    found = {}
    for part in text.split(" | "):
        name, colon, value = part.rpartition(": ")
        try:
            number = float(value)
        except ValueError:
            continue
        if colon:
            found[name if category == "other" else f"{category}/{name}"] = number
    return found


class Tail:
    """Reads what another process appends to a log from now on; a line counts once its end is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = path.stat().st_size if path.exists() else 0
        self._parser = Parser()

    def facts(self) -> Iterator[Step | Saved]:
        """What came since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            while raw := file.readline(LONGEST_LINE):
                if not raw.endswith(b"\n") and len(raw) < LONGEST_LINE:
                    return
                self._place += len(raw)
                if fact := self._parser.take(raw.decode(errors="replace").removesuffix("\n")):
                    yield fact


class StepMetrics:
    """The metrics of one attempt's steps, by our names; what is not finite is left out, as JSON has no word for it."""

    def __init__(self, rollouts: int) -> None:
        """rollouts: of a step."""
        self._rollouts = rollouts
        self._seconds: deque[float] = deque(maxlen=RATE_STEPS)

    def of(self, data: Mapping[str, float]) -> dict[str, float]:
        """data: of the next step."""
        finite = {name: number for name, number in data.items() if isfinite(number)}
        found = {ours: finite[name] for name, ours in NAMES.items() if name in finite}
        found["tokens"] = round(self._rollouts * found.get("tokens_mean", 0.0))
        if "val/stop_rate" in finite:
            found["truncated"] = round(1.0 - finite["val/stop_rate"], 6)
        if (seconds := found.get("seconds", 0.0)) > 0:
            self._seconds.append(seconds)
            found[STEPS_PER_SECOND.name] = len(self._seconds) / sum(self._seconds)
        for name, part in (("tokens_per_s", "seconds/rollout"), ("train_tokens_per_s", "seconds/update")):
            if found.get(part, 0.0) > 0:
                found[name] = found["tokens"] / found[part]
        return found
