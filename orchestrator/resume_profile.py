"""The profile that a run goes on with: the stored one, or the one that a person asks for where the run allows it.

From its first checkpoint on, a run keeps what its work rests on. Before that nothing rests on anything: every knob may
change, so that a first start that failed is mended in place.
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


def settle_profile(
    run: RunDir, wanted: Profile | None, store: Store, reader: Reader, args: argparse.Namespace
) -> Profile:
    """The profile to run with. A changed one is shown as a diff; what cannot change is refused.

    wanted: None where nothing was asked for. The caller holds the run's lock.
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
        raise error  # it shows the changes itself
    tell(f"profile of run '{run.name}' changes", changes, begun=True)
    store.set_profile(resolved_json(wanted).decode(), profile_sha256(wanted))
    return wanted


def has_begun(run: RunDir) -> bool:
    """Whether its store knows a checkpoint, as far as one can tell without the lock; one that cannot be read may."""
    if not is_born(run):
        return False
    try:
        with closing(Reader.open(run)) as reader:
            return bool(reader.checkpoints())
    except (LonghaulError, sqlite3.Error):
        return True  # what is wrong with it is told when it is opened


def may_change_all(run: RunDir, stored: Profile, store: Store, reader: Reader) -> bool:
    """Whether the run has no checkpoint, nor one on disk that a crash left without a row.

    Recovery finds out: it ends a worker that still writes one, and adopts what is whole.
    """
    if not reader.checkpoints():
        ledger = Ledger(run, store, reader, stored.retention)
        for line in recover_run(run, store, reader, ledger, time.time()):
            say(f"{line}\n")
    return not reader.checkpoints()


def begin_anew(run: RunDir, wanted: Profile, changes: list[Change], store: Store) -> None:
    """Store the profile; what was made under the old one goes, unless it is keyed by what it depends on.

    Seeds and measured difficulties are (workers/azr/seeding.py, workers/grpo/difficulty.py). Imported tasks are too,
    but a run that no longer imports any would still be taken to have begun with them.
    """
    text, sha256 = resolved_json(wanted).decode(), profile_sha256(wanted)
    if all(change.kind == "free" for change in changes):
        store.set_profile(text, sha256)
        return
    run.imported.unlink(missing_ok=True)  # first: killed in between, the old profile makes it once more
    store.begin_anew(text, sha256, wanted.run.seed)


def typed_for_another(args: argparse.Namespace) -> str:
    """The command as it was typed, for a run of another name; empty where it named no profile. (pure)"""
    if not args.profile:
        return ""
    named = argparse.Namespace(**{**vars(args), "run": "NEW-NAME"})
    return preflight.command_of(named)


def tell(what: str, changes: list[Change], *, begun: bool) -> None:
    say(f"{what}:\n{render(changes, has_begun=begun)}\n" if changes else "")
