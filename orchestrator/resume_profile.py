"""Chooses the profile of a resumed run: the stored one, or the requested one if the run allows the changes.

From its first checkpoint on, a run keeps the knobs that its work depends on. Before that every knob may change, so that
a failed first start can be fixed in place.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from contextlib import closing

from orchestrator import preflight
from orchestrator.commit import Ledger
from orchestrator.recovery import recover_run
from orchestrator.streams import say
from profiles.changes import Change, another_run, diff, refusal, render
from profiles.errors import LonghaulError
from profiles.load import from_json, profile_sha256, resolved_json
from profiles.schema import Profile
from state.layout import RunDir
from state.reader import Reader, is_born
from state.store import Store


def profile_to_resume(
    run: RunDir, wanted: Profile | None, store: Store, reader: Reader, args: argparse.Namespace
) -> Profile:
    """The profile to run with. Prints the changes as a diff, and refuses those that are not allowed.

    wanted: None keeps the stored profile. The caller holds the run's lock.
    """
    stored = from_json(reader.profile_json())
    if wanted is None or wanted == stored:
        return stored
    changes = diff(stored, wanted)
    if may_change_all(run, stored, store, reader):
        tell(f"profile of run '{run.name}' changes; it has no checkpoint yet, so every knob may", changes, begun=False)
        begin_anew(run, wanted, changes, store)
        return wanted
    if (error := refusal(changes, args.accept_changes, typed_for_another(args) or another_run(wanted))) is not None:
        raise error  # the error shows the changes
    tell(f"profile of run '{run.name}' changes", changes, begun=True)
    store.set_profile(resolved_json(wanted).decode(), profile_sha256(wanted))
    return wanted


def has_begun(run: RunDir) -> bool:
    """Whether the run has a checkpoint, as far as can be told without the lock. True if the store is unreadable."""
    if not is_born(run):
        return False
    try:
        with closing(Reader.open(run)) as reader:
            return bool(reader.checkpoints())
    except (LonghaulError, sqlite3.Error):
        return True  # opening the store will report the error


def may_change_all(run: RunDir, stored: Profile, store: Store, reader: Reader) -> bool:
    """Whether the run has no checkpoint, not even one on disk without a row.

    Runs recovery first, which ends a worker that may still be writing one, and adopts valid checkpoints.
    """
    if not reader.checkpoints():
        ledger = Ledger(run, store, reader, stored.retention)
        for line in recover_run(run, store, reader, ledger, time.time()):
            say(f"{line}\n")
    return not reader.checkpoints()


def begin_anew(run: RunDir, wanted: Profile, changes: list[Change], store: Store) -> None:
    """Store the profile, and delete what was made under the old one unless it is keyed by the settings it depends on.

    Seeds and measured difficulties are keyed (workers/azr/seeding.py, workers/grpo/difficulty.py). So are imported
    tasks, but they must go too: otherwise a run that no longer imports any would seem to have started with them.
    """
    text, sha256 = resolved_json(wanted).decode(), profile_sha256(wanted)
    if all(change.kind == "free" for change in changes):
        store.set_profile(text, sha256)
        return
    run.imported.unlink(missing_ok=True)  # first: after a kill in between, the old profile recreates it
    store.begin_anew(text, sha256, wanted.run.seed)


def typed_for_another(args: argparse.Namespace) -> str:
    """The command as typed, but for a run with another name; empty if it named no profile. (pure)"""
    if not args.profile:
        return ""
    named = argparse.Namespace(**{**vars(args), "run": "NEW-NAME"})
    return preflight.command_of(named)


def tell(what: str, changes: list[Change], *, begun: bool) -> None:
    say(f"{what}:\n{render(changes, has_begun=begun)}\n" if changes else "")
