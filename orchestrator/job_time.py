"""How many optimiser steps one job of a scheduler has time for, and how many jobs a run takes. (pure)"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.display.wording import duration
from orchestrator.launchers.slurm_script import MARGIN_S, WARNED_S

SLOWEST_DISK = 100 << 20
"""Bytes a second that a host writes at least, or `doctor` refuses its disk."""
LARGEST_MARGIN = 0.25
"""Of a limit that may go to waiting for the end: with more, the limit is too short to be of use."""


@dataclass(frozen=True)
class JobTime:
    """Seconds. limit_s: after which the scheduler ends the job. step_s: None: not known yet."""

    limit_s: float
    start_s: float
    """From the start of the job to its first step: cluster, weights, engines."""
    save_s: float
    step_s: float | None = None

    @property
    def margin_s(self) -> float:
        """How long before the limit the job is told to save and end: a step may have just begun."""
        return max(float(MARGIN_S), self.save_s + (self.step_s or 0.0) + WARNED_S)

    @property
    def steps_per_job(self) -> int | None:
        """None: the time of a step is not known."""
        if self.step_s is None:
            return None
        return max(0, math.floor((self.limit_s - self.start_s - self.margin_s) / self.step_s))

    def jobs(self, steps: int) -> int | None:
        """Jobs that `steps` take, one after the other; None where that is not known, or none would make a step."""
        each = self.steps_per_job
        return math.ceil(steps / each) if each else None

    @property
    def problem(self) -> str:
        """Why no run can live with this limit; empty: it can."""
        limit, least = self.limit_s / 60, (self.start_s + self.save_s) / 60
        if self.limit_s < self.start_s + self.save_s:
            return f"a limit of {limit:.0f} min is shorter than start-up and one save together, {least:.0f} min"
        if self.margin_s > LARGEST_MARGIN * self.limit_s:
            share = f"{self.margin_s / self.limit_s:.0%} of the limit of {limit:.0f} min"
            return f"save, step and warning take {self.margin_s / 60:.0f} min, {share}; at most {LARGEST_MARGIN:.0%}"
        if self.steps_per_job == 0:
            return f"a limit of {limit:.0f} min has no time for a step of {self.step_s:.0f} s after start-up"
        return ""

    @property
    def least_limit_s(self) -> float:
        """The shortest limit without a problem, in whole minutes."""
        least = max(
            self.start_s + self.save_s,
            self.margin_s / LARGEST_MARGIN,
            self.start_s + self.margin_s + (self.step_s or 0.0),
        )
        return math.ceil(least / 60) * 60


def asked_time(
    args: argparse.Namespace, time_limit_minutes: int, *, start_s: float, save_s: float, step_s: float | None = None
) -> JobTime | None:
    """What the command line says of a job's time; the other arguments are where it says nothing. None: no limit."""
    limit_s = time_limit_minutes * 60 if args.limit_h is None else args.limit_h * 3600
    if not limit_s:
        return None
    return JobTime(
        limit_s=limit_s,
        start_s=start_s if args.start_s is None else args.start_s,
        save_s=save_s if args.save_s is None else args.save_s,
        step_s=step_s if args.step_s is None else args.step_s,
    )


def in_jobs(time: JobTime, steps: int | None) -> str:
    """For the user: steps that a job has time for, and jobs that `steps` take."""
    if time.step_s is None:
        return f"how many a job of {duration(time.limit_s)} has time for, --step-s tells"
    rest = f"start-up {duration(time.start_s)}, margin {duration(time.margin_s)}"
    fits = f"{time.steps_per_job:,} in a job of {duration(time.limit_s)} at {time.step_s:.3g} s a step ({rest})"
    jobs = time.jobs(steps) if steps else None
    return f"{fits}: {jobs:,} job{'s' * (jobs != 1)}" if jobs else fits


def time_facts(time: JobTime | None, steps: int | None) -> Mapping[str, float | None]:
    """The same for a program, in seconds. Without a limit, nothing is known."""
    return {
        "steps": steps,
        "steps_per_job": time.steps_per_job if time else None,
        "jobs": time.jobs(steps) if time and steps else None,
        "margin_s": time.margin_s if time else None,
    }
