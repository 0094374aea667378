"""What the worker and verl's trainer say to each other: files in one folder, as they may be on different hosts.

The worker asks with `save` and `stop`. The trainer takes a request away between two steps, answers with `saved-STEP`,
and says in `progress.json` where it is.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

CONTROL = "LONGHAUL_VERL_CONTROL"
"""Variable with the folder."""
EVERY = "LONGHAUL_VERL_EVERY"
"""Variable: steps between two checkpoints."""
BEGAN_AT = "LONGHAUL_VERL_STEP"
"""Variable: the last step that is done when the job begins."""
ON_CPU = "LONGHAUL_VERL_CPU"
"""Variable: 1 where there are no GPUs."""
NO_STEP = -1
"""Told as the step until the first one begins."""
SAVE, STOP = "save", "stop"
_SAVED = "saved-"


def ask(control: Path, what: str) -> None:
    """Ask for a checkpoint (SAVE), or for one and the end (STOP), after the step."""
    (control / what).touch()


def asked(control: Path) -> frozenset[str]:
    """What is asked for now."""
    return frozenset(what for what in (SAVE, STOP) if (control / what).exists())


def answer(control: Path, step: int, requests: frozenset[str]) -> None:
    """verl's files of `step` are written, and these requests are done."""
    (control / f"{_SAVED}{step}").touch()
    for what in requests:
        (control / what).unlink(missing_ok=True)


def saved(control: Path) -> list[int]:
    """Steps whose files are complete, in order."""
    return sorted(int(path.name.removeprefix(_SAVED)) for path in control.glob(f"{_SAVED}*"))


def tell(control: Path, step: int, stage: str) -> None:
    """Say where the trainer is. Replaced in one piece, so that a reader never sees half of it."""
    new = control / "progress.new"
    new.write_text(json.dumps({"step": step, "stage": stage}))
    new.replace(control / "progress.json")


def told(control: Path) -> tuple[int, str]:
    """Step and stage; (NO_STEP, "") before the first word."""
    with suppress(OSError, ValueError, KeyError):
        found = json.loads((control / "progress.json").read_bytes())
        return int(found["step"]), str(found["stage"])
    return NO_STEP, ""


def folder() -> Path:
    """Of the job that this process belongs to."""
    return Path(os.environ[CONTROL])
