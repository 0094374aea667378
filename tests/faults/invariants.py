"""What must hold after every kill and recovery, numbered as in the specification, and what a run ends with."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commit import Ledger
from orchestrator.copies import owner_of
from orchestrator.launchers.local import strays
from orchestrator.recovery import recover_run
from profiles.load import from_json
from state.checkpoint import Manifest, verify
from state.layout import RunDir
from state.lock import RunLock
from state.reader import Reader
from state.row_digests import altered
from state.states import FINAL
from state.store import Store
from tests.faults.harness import Scene


@dataclass(frozen=True)
class Ending:
    """What a run came to, without times, tokens and attempt numbers: equal for every way to get there."""

    step: int
    digest: str
    cycles: tuple[tuple[Any, ...], ...]
    steps: tuple[tuple[Any, ...], ...]
    validations: tuple[tuple[Any, ...], ...]
    examples: tuple[str, ...]


def ending(scene: Scene) -> Ending:
    """I2 and I4: bytes of the head, and every step, validation of the run's own, and example."""
    step, digest = scene.rows("SELECT step, digest FROM checkpoints JOIN runs ON head=checkpoint_id")[0]
    return Ending(
        step,
        digest,
        tuple(scene.rows("SELECT cycle, phase, first_step, end_step, state, verdict, new_examples, exhausted"
                         " FROM cycles ORDER BY cycle")),
        tuple(scene.rows("SELECT step, cycle, loss, reward, tokens FROM trained_steps ORDER BY step")),
        tuple(scene.rows("SELECT c.digest, suite, v.step, accuracy, v.metrics FROM validations v"
                         " JOIN checkpoints c USING (checkpoint_id) WHERE asked=0 ORDER BY v.step, suite")),
        tuple(row[0] for row in scene.rows("SELECT example_id FROM examples ORDER BY 1")),
    )  # fmt: skip


def check_invariants(scene: Scene, clean: Ending | None = None) -> None:
    """After a recovery. clean: what an undisturbed run ended with, where this one has ended too."""
    check_facts(scene, clean)
    _nobody_is_left(scene)


def check_facts(scene: Scene, clean: Ending | None = None, *, is_all_hashed: bool = True) -> None:
    """`check_invariants` without those of processes. is_all_hashed: no checkpoint may still wait for its hash."""
    run, reader = scene.run, Reader.open(scene.run)
    try:
        history, known = reader.history(), reader.checkpoints()
        _the_head_verifies(run, reader)
        _pointers_say_what_the_store_says(run, reader)
        if clean is not None:
            assert ending(scene) == clean, "I2, I4"
        _nothing_is_missing_or_twice(scene, history.step)
        _the_store_is_sound(run)
        _parents_form_one_chain(scene)
        verified = [facts for facts in known if facts.state == "committed" and facts.verified]
        committed = [facts for facts in known if facts.state == "committed"]
        assert not is_all_hashed or len(verified) >= min(2, len(committed)), "I8"
        assert not [facts for facts in known if facts.state == "deleting"], "I9"
        hidden = [path.name for path in run.checkpoints.glob(".*")] if run.checkpoints.exists() else []
        assert not hidden, f"I9: {hidden}"
        open_states = scene.rows("SELECT cycle, role, attempt, state FROM attempts")
        assert all(state in FINAL for *_, state in open_states), f"I12: {open_states}"
    finally:
        reader.close()


def _the_head_verifies(run: RunDir, reader: Reader) -> None:
    head = reader.history().head
    if head is None:
        assert not reader.checkpoints(), "I1: there are checkpoints but no head"
        return
    manifest = verify(run.root / head.path, deep=True)
    assert Manifest.checkpoint_id(run.root / head.path) == head.checkpoint_id, "I1"
    assert (manifest.digest, manifest.step) == (head.digest, head.step), "I1"
    for facts in reader.checkpoints():
        if facts.state == "committed":
            verify(run.root / facts.path, deep=True)


def _pointers_say_what_the_store_says(run: RunDir, reader: Reader) -> None:
    """I13: other programs find the head and the best checkpoint without reading the store."""
    history = reader.history()
    said = json.loads(run.latest.read_bytes()) if run.latest.exists() else None
    assert (said and said["checkpoint_id"]) == (history.head and history.head.checkpoint_id), "I13"
    best = json.loads(run.best.read_bytes()) if run.best.exists() else None
    assert (best and best["accuracy"]) == (history.best_validation and history.best_validation.accuracy), "I13"
    assert all((run.root / one["checkpoint"] / "MANIFEST.json").exists() for one in (said, best) if one), "I13"


def _nothing_is_missing_or_twice(scene: Scene, head_step: int) -> None:
    trained = [step for (step,) in scene.rows("SELECT step FROM trained_steps ORDER BY step")]
    assert trained == list(range(1, head_step + 1)), "I4: steps"
    keys = scene.rows(
        "SELECT cycle, role, attempt, type, step, payload FROM events WHERE type IN ('checkpoint','done')"
    )
    assert max(Counter(keys).values(), default=1) == 1, "I4: events"
    missing = scene.rows(
        "SELECT step FROM trained_steps t WHERE NOT EXISTS (SELECT 1 FROM examples e WHERE e.step=t.step)"
        " AND json_extract(metrics, '$.new_examples') > 0"
    )
    assert not missing, f"I4: examples of steps {missing}"


def _the_store_is_sound(run: RunDir) -> None:
    with closing(sqlite3.connect(run.store)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "I5"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == [], "I5"
        assert altered(db) == "", "I5"
        kept = db.execute("SELECT cycles_done, new_examples, train_s FROM totals").fetchall()
        counted = db.execute(
            "SELECT count(*) FILTER (WHERE state='committed' AND cycle>0), coalesce(sum(new_examples), 0),"
            " coalesce(sum(train_s), 0.0) FROM cycles"
        ).fetchone()
        assert kept == [pytest.approx(counted)], "I5"


def _parents_form_one_chain(scene: Scene) -> None:
    """I6: from the head to the root, and nobody has two children among the committed ones."""
    rows = scene.rows("SELECT checkpoint_id, parent, state FROM checkpoints")
    parents = {identity: parent for identity, parent, _ in rows}
    at, seen = scene.one("SELECT head FROM runs"), []
    while at is not None:
        assert at in parents, f"I6: {at} has no row"
        assert at not in seen, "I6: a loop"
        seen.append(at)
        at = parents[at]
    stray = [identity for identity, _, state in rows if state == "committed" and identity not in seen]
    assert not stray, f"I6: {stray} are not ancestors of the head"


def _nobody_is_left(scene: Scene) -> None:
    left = [process for process in strays(owner_of(scene.run, scene.run_id)) if process.is_running()]
    assert not left, f"I7: {left}"
    RunLock.acquire(scene.run).release()


# --- recovery in this process, on a copy ------------------------------------------------------------------------------


def check_recovery(scene: Scene, beside: Path, lost_at_most: int) -> None:
    """Recover a copy of what a dead master left, twice: invariants hold, the second time changes nothing (I11), and
    no more than `lost_at_most` finished steps are lost (I3). The original stays as it is."""
    scene.wait_until_nobody_is_left()
    if not scene.run_id:
        return  # it died before the run was born
    shutil.copytree(scene.run.root, beside / "runs" / scene.name, ignore=shutil.ignore_patterns("ballast", "*.sock"))
    copy = Scene(beside, scene.knobs, [], scene.name)
    reached = max((step for (step,) in copy.rows("SELECT step FROM steps")), default=0)
    recover_here(copy.run)
    check_invariants(copy)
    reached = max([reached, *(step for (step,) in copy.rows("SELECT step FROM steps"))])
    assert reached - max(copy.head_step(), 0) <= lost_at_most, "I3"
    before = _dump(copy.run)
    assert recover_here(copy.run) == [], "I11"
    assert _dump(copy.run) == before, "I11"
    shutil.rmtree(beside)


def recover_here(run: RunDir) -> list[str]:
    """What a master does before anything else; returns a line for each thing done."""
    lock = RunLock.acquire(run)
    store, reader = Store.open(run), Reader.open(run)
    try:
        profile = from_json(reader.profile_json())
        return recover_run(run, store, reader, Ledger(run, store, reader, profile.retention), time.time())
    finally:
        reader.close()
        store.close()
        lock.release()


def _dump(run: RunDir) -> tuple[list[str], list[str]]:
    """All rows and all names."""
    with closing(sqlite3.connect(run.store)) as db:
        rows = list(db.iterdump())
    return rows, sorted(str(path.relative_to(run.root)) for path in run.root.rglob("*") if "state.db" not in path.name)


def manifest_of(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "MANIFEST.json").read_bytes()))
