"""Show how many cycles a run has left, or change it: `cycles +2`, `cycles -1`, `cycles 40`, `cycles none`.

Changes run.max_cycles in the store, so a later `run` knows it. The cycle under way is finished whatever is asked. Also
for a run that has ended: `run` then goes on with it.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import Any

from orchestrator.alive import master_pid
from orchestrator.control import ask, seconds
from orchestrator.display.answers import tell
from orchestrator.display.wording import go_on
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir
from state.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("change", nargs="?", default="", metavar="CHANGE", help="+N, -N, N, or none for no limit")
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help="seconds to wait (60)")


def run(args: argparse.Namespace) -> int:
    from orchestrator.steering import cycles_text

    run_dir = find_run(args)
    with closing(Reader.open(run_dir)) as reader:
        history = reader.history()
    has_master = master_pid(run_dir, max(0.0, time.time() - history.heartbeat_at)) is not None
    if args.change and has_master:
        answer = ask(run_dir, "cycles", args.timeout, change=args.change)
    else:
        answer = of_an_idle_run(run_dir, args.change)
    text = cycles_text(answer) if answer.get("ok") else ""
    if answer.get("ok") and args.change and not has_master and answer["left"] != 0:
        text += f"; to go on: {go_on(run_dir.name, ('train',), is_seeded=True)}"
    return tell(args, answer, text)


def of_an_idle_run(run_dir: RunDir, change: str) -> dict[str, Any]:
    """What a master would answer; the change is made here, under the run's lock. Raises LonghaulError."""
    from orchestrator.steering import Refused, changed_cycles, cycle_facts, with_cycles
    from profiles.load import from_json, profile_sha256, resolved_json
    from state.lock import RunLock
    from state.store import Store

    lock = RunLock.acquire(run_dir) if change else None  # first: another change may be under way
    try:
        with closing(Reader.open(run_dir)) as reader:
            history, profile = reader.history(), from_json(reader.profile_json())
        if lock is not None:
            try:
                cycle = history.current.cycle if history.current else 0
                profile = with_cycles(profile, changed_cycles(change, profile.run.max_cycles, cycle))
            except Refused as why:
                raise LonghaulError(
                    str(why),
                    kept="the run, unchanged",
                    next_command=f"python -m orchestrator cycles --run {run_dir.name}   (shows what it has)",
                    exit_code=ExitCode.INPUT,
                ) from None
            with closing(Store.open(run_dir)) as store:
                store.guard = lock.guard
                store.set_profile(resolved_json(profile).decode(), profile_sha256(profile))
        return {"ok": True, **cycle_facts(profile, history)}
    finally:
        if lock is not None:
            lock.release()
