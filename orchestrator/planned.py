"""What `run --plan` prints about memory and disk, and the exit code that says whether both are there."""

from __future__ import annotations

import argparse
import json
import sys

from orchestrator.disk import Room, disk_facts, disk_line
from orchestrator.display.wording import among
from orchestrator.judging import ProfileVerdict
from orchestrator.preflight import plan_facts, plan_text
from profiles.errors import ExitCode


def say_plan(verdict: ProfileVerdict, room: Room, args: argparse.Namespace) -> int:
    """Print the plan; the exit code says whether it fits. With --card the disk is that of another machine, too."""
    if args.json:
        said = json.dumps({**plan_facts(verdict), "disk": disk_facts(room)}, indent=2) + "\n"
    else:
        said = among(args.runs, plan_text(verdict, args)) + disk_line(room) + "\n"
    sys.stdout.write(said)
    if verdict.plan is not None and not verdict.plan.fits:
        return int(ExitCode.CUDA_OOM)
    return int(ExitCode.DISK if room.is_refused and not args.card else ExitCode.OK)
