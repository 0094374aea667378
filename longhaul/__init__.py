"""Longhaul from Python: start, watch and query runs, read what they found, and load their checkpoints.

    import longhaul

    run = longhaul.start("pocket", name="night")
    for step in run.watch():
        print(step.step, step.reward)
    print(longhaul.frame(run.validations()))

docs/python.md has the guide. What `__all__` names is stable; everything else may change with any release.
"""

from __future__ import annotations

from longhaul.frames import frame
from longhaul.records import Checkpoint, Cycle, Event, Point, Rollout, Status, Step, Task, Validation
from longhaul.run import LoadedModel, Run, open_run, runs
from longhaul.start import resume, start
from profiles.errors import ExitCode, LonghaulError

__all__ = [
    "Checkpoint",
    "Cycle",
    "Event",
    "ExitCode",
    "LoadedModel",
    "LonghaulError",
    "Point",
    "Rollout",
    "Run",
    "Status",
    "Step",
    "Task",
    "Validation",
    "frame",
    "open_run",
    "resume",
    "runs",
    "start",
]
