"""Before anything is submitted: would the engine of another program take this profile? Its worker's `check` knows."""

from __future__ import annotations

import json
import os
import subprocess

from profiles.errors import ExitCode, LonghaulError
from profiles.load import resolved_json
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state import python

CHECK_S = 120.0


def check_engine(profile: Profile) -> None:
    """Let `python -m workers.<worker>.check` read the profile. Raises LonghaulError with what it refuses.

    A process of its own, as the check imports libraries that the master must not hold.
    """
    if not worker_kind_of(profile).has_own_engine:
        return
    module = f"workers.{profile.run.worker}.check"
    done = subprocess.run(
        python.command(module),
        input=resolved_json(profile),
        capture_output=True,
        timeout=CHECK_S,
        env=python.finding_us(os.environ),
    )
    if done.returncode == 0:
        return
    try:
        told = json.loads(done.stdout)
        raise LonghaulError(**told, exit_code=ExitCode(done.returncode))
    except (ValueError, TypeError):
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LonghaulError(
            f"the check of the worker {profile.run.worker} ended with {done.returncode}: {last}",
            kept="everything; nothing was submitted",
            next_command=f"python -m {module} < profile.json",
            exit_code=ExitCode.INTERNAL,
        ) from None
