"""Go on with a paused run.

Where its master is gone, this only ends the pause, and `run` goes on. So does a run that was stopped.
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
from state.history import History
from state.layout import RunDir
from state.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help="seconds to wait (60)")


def run(args: argparse.Namespace) -> int:
    run_dir = find_run(args)
    with closing(Reader.open(run_dir)) as reader:
        history = reader.history()
    is_held = master_pid(run_dir, max(0.0, time.time() - history.heartbeat_at)) is not None
    if is_held or history.paused_at is None:
        answer = ask(run_dir, "resume", args.timeout)
        return tell(args, answer, f"{answer.get('note')}; the head is step {answer.get('step')}")
    answer = end_pause(run_dir, history)
    return tell(args, answer, f"{answer['note']}; to go on: {go_on(run_dir.name, ('train',), is_seeded=True)}")


def end_pause(run_dir: RunDir, history: History) -> dict[str, Any]:
    """End the pause of a run without a master, under its lock. Raises LonghaulError."""
    from state.lock import RunLock
    from state.store import Store

    lock = RunLock.acquire(run_dir)
    try:
        with closing(Store.open(run_dir)) as store:
            store.guard = lock.guard
            store.resume()
    finally:
        lock.release()
    return {"ok": True, "step": history.step, "note": "no longer paused, and no master runs"}
