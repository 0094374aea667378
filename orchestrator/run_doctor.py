"""Checks everything that a run has on disk, and repairs what can be repaired without a loss.

`examine_run` reads only, also beside a master that trains. `repair_run` needs the run's lock, moves what is damaged to
quarantine/ and deletes nothing that is whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from orchestrator import alive, handles
from orchestrator.commit import Ledger
from orchestrator.copies import owner_of
from orchestrator.disk import room_for
from orchestrator.display.wording import size
from orchestrator.doctor import Finding
from orchestrator.full_disk import needed
from orchestrator.hashing import hashed
from orchestrator.launchers.local import strays
from orchestrator.rebuilding import made_again
from orchestrator.recovery import recover_run
from orchestrator.run_directory import make_ballast, make_folders
from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json
from state import durable, recover
from state.history import CheckpointFacts
from state.layout import RunDir
from state.opening import unsound
from state.reader import Reader
from state.recover import Kind, Repair
from state.store import Store
from workers.contract import Event, Result, WorkerSpec

REPAIR = "python -m orchestrator doctor --run {} --repair"
LOCAL = handles.EVERYWHERE


def examine_run(run: RunDir) -> Iterator[Finding]:
    """Check store, back-ups, checkpoints, attempts, processes and disk. Reads every byte of every checkpoint."""
    fix = REPAIR.format(run.name)
    master = alive.master_pid(run, heartbeat_age_s=0.0)
    yield Finding("master", "ok", f"pid {master} trains this run" if master else "none; nobody trains this run")
    problem = store_problem(run)
    if problem:
        yield Finding("store", "fail", problem, fix, ExitCode.STORE)
    else:
        yield Finding("store", "ok", f"every page and reference of {size(run.store.stat().st_size)}; profile as stored")
    yield from backups(run, fix)
    if problem:
        return
    with closing(Reader.open(run)) as reader:
        yield from checkpoints(run, reader, fix)
        if master is None:
            yield from left_behind(run, reader, fix)
        yield attempts(run)
        yield room(run, reader)


def store_problem(run: RunDir) -> str:
    """What is wrong with the store; empty: nothing. Writes nothing, migrates nothing."""
    if not run.store.exists():
        return "there is none"
    try:
        if said := unsound(run.store):
            return said
        with closing(Reader.open(run)) as reader:
            reader.history()
            reader.profile_json()
    except LonghaulError as error:
        if error.exit_code != ExitCode.STORE:
            raise
        return error.what
    return ""


def backups(run: RunDir, fix: str) -> Iterator[Finding]:
    found = sorted(run.backups.glob("*.db"))
    bad = {path.name: said for path in found if (said := unsound(path))}
    for name, said in bad.items():
        yield Finding("back-up", "warn", f"{name} cannot be used: {said}", fix)
    if len(found) > len(bad):
        yield Finding("back-ups", "ok", f"{len(found) - len(bad)} of the store, each whole")
    elif not bad:
        yield Finding("back-ups", "ok", "none of the store yet")


def checkpoints(run: RunDir, reader: Reader, fix: str) -> Iterator[Finding]:
    """A finding for each checkpoint that is damaged, and one for those that are whole."""
    head, whole, read = reader.history().head, 0, 0
    for facts, damage, obstacle in looked_at(run, reader):
        name = Path(facts.path).name
        if obstacle:
            yield Finding("checkpoint", "fail", f"{name} could not be read: {obstacle}", f"ls -l {run.checkpoints}")
        elif damage and head is not None and facts.checkpoint_id == head.checkpoint_id:
            detail = f"{name}, the head, is damaged: {damage}"
            yield Finding("checkpoint", "fail", detail, fix, ExitCode.STORE)
        elif damage:
            yield Finding("checkpoint", "warn", f"{name} is damaged: {damage}", fix)
        else:
            whole, read = whole + 1, read + facts.bytes
    yield Finding("checkpoints", "ok", f"{whole} whole; every byte of {size(read)} read from the disk")


def looked_at(run: RunDir, reader: Reader) -> Iterator[tuple[CheckpointFacts, str, str]]:
    """Each kept checkpoint with its damage, and with what kept it from being read. One pruned meanwhile is left out."""
    for facts in reader.checkpoints():
        if facts.state != "committed":
            continue
        found = hashed(run, facts, from_disk=True)
        now = reader.checkpoint(facts.checkpoint_id)
        if now is not None and now.state == "committed":
            yield facts, found.damage, found.obstacle


def left_behind(run: RunDir, reader: Reader, fix: str) -> Iterator[Finding]:
    """What a crash left, which the next start puts in order by itself."""
    history = reader.history()
    by_start = f"python -m orchestrator run --run {run.name}   (does it at its start; or: {fix})"
    for repair in recover.plan_adoption(run, history.run_id, reader.checkpoints(), history.head):
        will = {Kind.ADOPT: "to adopt", Kind.DELETE: "to remove"}.get(repair.kind, "to move to quarantine/")
        yield Finding("left behind", "warn", f"{repair.path.name}, {will}: {repair.reason}", by_start)
    if num_open := len(reader.open_attempts()):
        yield Finding("left behind", "warn", f"{num_open} attempts have no end in the store", by_start)
    if left := strays(owner_of(run, history.run_id)):
        pids = ", ".join(str(process.pid) for process in left[:8])
        yield Finding("processes", "warn", f"workers of a master that is gone still run: pid {pids}", by_start)


def attempts(run: RunDir) -> Finding:
    """Whether specs, results and events can be read: `recover` would need them."""
    specs, results = msgspec.json.Decoder(WorkerSpec), msgspec.json.Decoder(Result)
    bad, count = [], 0
    for folder in sorted(run.cycles.glob("*/*-*")):
        count += 1
        for name, decoder in (("spec.json", specs), ("result.json", results)):
            try:
                decoder.decode((folder / name).read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, msgspec.DecodeError):
                bad.append(run.relative(folder / name))
        bad += [f"{run.relative(folder / 'events.jsonl')} (line {number})" for number in unreadable_lines(folder)]
    if not bad:
        return Finding("attempts", "ok", f"specs, results and events of {count}")
    detail = f"{len(bad)} unreadable: {', '.join(bad[:5])}; the store has what was committed"
    return Finding("attempts", "warn", detail, "nothing to do while the store is whole; `recover` could not read them")


def unreadable_lines(folder: Path) -> Iterator[int]:
    """Numbers of whole lines that are no events."""
    decoder = msgspec.json.Decoder(Event)
    with suppress(OSError), (folder / "events.jsonl").open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                decoder.decode(line)
            except msgspec.DecodeError:
                if line.endswith(b"\n"):
                    yield number


def room(run: RunDir, reader: Reader) -> Finding:
    """Whether what the next attempt writes fits."""
    found = room_for(from_json(reader.profile_json()), run)
    text = f"{size(found.free)} free; the next attempt writes up to {size(needed(found))}"
    if found.free >= needed(found):
        return Finding("disk", "ok", text)
    return Finding("disk", "fail", text, f"df -h {run.root}", ExitCode.DISK)


# --- repairing --------------------------------------------------------------------------------------------------------


def repair_run(run: RunDir) -> Iterator[str]:
    """Do what is safe, a line for each thing done. The caller holds the run's lock.

    A damaged store is made again from its files, a damaged checkpoint moves to quarantine/, a damaged head is replaced
    by the newest checkpoint that is whole, and what a crash left is put in order as at a start. Raises LonghaulError
    (STORE), before anything is touched, where nothing whole is left.
    """
    make_folders(run)
    if problem := store_problem(run):
        yield f"the store: {problem}"
        yield from made_again(run)
    with closing(Store.open(run)) as store, closing(Reader.open(run)) as reader:
        profile = from_json(reader.profile_json())
        ledger = Ledger(run, store, reader, profile.retention)
        yield from put_away_damaged(run, ledger, reader)
        if elsewhere := [handle for handle in handles.written(run) if handle.launcher != LOCAL]:
            yield f"{len(elsewhere)} jobs may still run: the next start takes them over, and does the rest"
        else:
            yield from recover_run(run, store, reader, ledger, time.time())
        yield from backups_again(run, store)
    make_ballast(run)


def put_away_damaged(run: RunDir, ledger: Ledger, reader: Reader) -> Iterator[str]:
    head = reader.history().head
    for facts, damage, _ in list(looked_at(run, reader)):
        if not damage:
            continue
        if head is not None and facts.checkpoint_id == head.checkpoint_id:
            yield from ledger.recover_checkpoints(time.time())
        elif (now := reader.checkpoint(facts.checkpoint_id)) is not None and now.state == "committed":
            repair = Repair(Kind.QUARANTINE, run.root / facts.path, damage, facts.checkpoint_id)
            yield ledger.repair(repair, time.time())


def backups_again(run: RunDir, store: Store) -> Iterator[str]:
    """Move back-ups that cannot be used to quarantine/, and write a new one in their place."""
    bad = [path for path in sorted(run.backups.glob("*.db")) if unsound(path)]
    for path in bad:
        target, number = run.quarantine / path.name, 1
        while target.exists():
            number += 1
            target = run.quarantine / f"{path.name}.{number}"
        with durable.explained("cannot move", path, kept="all files, unchanged"):
            path.rename(target)
        yield f"DAMAGED, moved to quarantine: back-up {path.name}"
    if bad:
        yield f"wrote a new back-up, {store.backup(bad[-1].name).name}"
