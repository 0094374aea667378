"""Repairs what a crash left, before anything starts. Safe to rerun after a kill."""

from __future__ import annotations

import os
from contextlib import suppress

from orchestrator import handles
from orchestrator.catch_up import catch_up
from orchestrator.commit import Ledger
from orchestrator.copies import owner_of
from profiles.load import from_json
from state.crash import crash_point
from state.layout import RunDir
from state.reader import Reader
from state.store import Store

CHECK_BYTES = 64 << 20
"""Stores up to this size are checked page by page at start. In larger ones, damage shows only when SQLite reads it."""


def recover_run(run: RunDir, store: Store, reader: Reader, ledger: Ledger, now: float, running: str = "") -> list[str]:
    """Make store, checkpoints and processes of a run consistent. Returns one line per repair.

    running: token of an attempt whose living worker is kept; empty: every worker is killed.

    Raises LonghaulError: STORE if the store is damaged, or if it names checkpoints and none of them is valid; INPUT
    if workers may be left whose launcher cannot be loaded.
    """
    done: list[str] = []
    store.check(pages=run.store.stat().st_size <= CHECK_BYTES)
    history = reader.history()
    if killed := handles.end_all(run, owner_of(run, history.run_id), from_json(reader.profile_json()), running):
        done.append(f"{killed} processes of an earlier master were still there; they are ended")
    for attempt in handles.fence_off(run, (one for one in reader.open_attempts() if one.token != running)):
        done.append(
            f"cycle {attempt.cycle}: the worker of attempt {attempt.attempt} does not end; it may write no more"
        )
    crash_point("recover.strays_killed")
    done += catch_up(ledger, now)
    done += ledger.recover_checkpoints(now) if not running else ledger.adopt(now, live_tokens=[running])
    crash_point("recover.adopted")
    for attempt in reader.open_attempts():
        if attempt.token == running:
            continue
        end_step = reader.end_step(attempt.cycle)
        ended = ledger.close(attempt, end_step, exit_code=None, failure="", lost=True, now=now)
        done.append(f"cycle {attempt.cycle}: {attempt.role} attempt {attempt.attempt}: {ended.state}")
        crash_point("recover.attempt_closed")
    ledger.publish()
    done += [f"pruned {path}" for path in ledger.prune()]
    for log in run.standby_logs.glob("*.log"):
        log.unlink(missing_ok=True)
    return done


def raise_oom_priority() -> None:
    """Lower our OOM score, if root. The kernel kills workers (500) and sandboxed programs (1000) before the master."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        if os.getuid() == 0:
            file.write("-100")
