"""Plans the repairs that checkpoints/ needs after a crash (pure), and applies them to the files.

`survey` looks, `plan` decides, `apply` moves files. The caller updates the store (rows, head). Repairs must be applied
in order; after an interruption, planning again leads to the same state.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.checkpoint import MANIFEST, STAGING_PREFIX, Damaged, Manifest, read_manifest, verify
from state.crash import crash_point
from state.history import CheckpointFacts
from state.layout import RunDir
from state.trash import TRASH_PREFIX


class Kind(StrEnum):
    DELETE = "delete"
    """Remove the staging directory of a dead attempt, or trash."""
    QUARANTINE = "quarantine"
    """Move away with the reason. If checkpoint_id is set, the caller marks its row; the directory may be missing."""
    ADOPT = "adopt"
    """A valid child of the head without a row: the caller commits it."""
    WALK_BACK = "walk_back"
    """The head is unusable: the caller makes checkpoint_id, an older checkpoint, the head."""


@dataclass(frozen=True)
class FoundDir:
    """An entry of checkpoints/. problem: why it cannot be used; the other fields are then unset."""

    path: Path
    problem: str = ""
    checkpoint_id: str = ""
    run_id: str = ""
    parent: str | None = None
    step: int = 0
    token: str = ""

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class Repair:
    kind: Kind
    path: Path
    reason: str
    checkpoint_id: str = ""
    is_whole: bool = False
    """QUARANTINE only: the checkpoint verifies but does not belong here."""


# --- looking -------------------------------------------------------------------------------------------------------


def survey(
    run: RunDir, known: Sequence[CheckpointFacts], head: CheckpointFacts | None, *, check_head: bool
) -> list[FoundDir]:
    """The entries of checkpoints/, by name. Verifies every byte of directories without a row.

    check_head: also verify the head and, if it is damaged, every other checkpoint, since one must replace it.
    """
    if not run.checkpoints.is_dir():
        return []
    rows = {Path(facts.path).name: facts for facts in known}
    paths = [path for path in sorted(run.checkpoints.iterdir()) if _is_ours(path.name)]
    suspicious = check_head and (head is None or bool(look(run.root / head.path).problem))
    found = []
    for path in paths:
        if path.name.startswith(".") or (path.name in rows and not suspicious):
            facts = rows.get(path.name)
            found.append(FoundDir(path, checkpoint_id=facts.checkpoint_id if facts else ""))
        else:
            found.append(look(path))
    return found


def look(path: Path) -> FoundDir:
    """Verify every byte of one directory."""
    try:
        manifest = verify(path, deep=True)
    except Damaged as damaged:
        return FoundDir(path, problem=damaged.reason)
    return found_as(path, manifest)


def found_as(path: Path, manifest: Manifest) -> FoundDir:
    identity = Manifest.checkpoint_id(path)
    return FoundDir(path, "", identity, manifest.run_id, manifest.parent, manifest.step, manifest.token)


def strangers(run: RunDir, run_id: str, known: Sequence[CheckpointFacts]) -> list[FoundDir]:
    """Checkpoints of the run without a row, according to their manifests; reads no other file."""
    rows, found = {Path(facts.path).name for facts in known}, []
    for path in sorted(run.checkpoints.glob("[!.]*")):
        if path.name not in rows:
            with suppress(Damaged):
                found.append(found_as(path, read_manifest(path)))
    return [item for item in found if item.run_id == run_id]


def _is_ours(name: str) -> bool:
    return not name.startswith(".") or name.startswith((STAGING_PREFIX, TRASH_PREFIX))


def plan_adoption(
    run: RunDir,
    run_id: str,
    known: Sequence[CheckpointFacts],
    head: CheckpointFacts | None,
    live_tokens: Collection[str] = (),
) -> list[Repair]:
    """Repairs after an attempt: what to do with directories without a row. Assumes that the head is valid."""
    return plan(run, survey(run, known, head, check_head=False), known, head, run_id, live_tokens)


def plan_recovery(
    run: RunDir, run_id: str, known: Sequence[CheckpointFacts], head: CheckpointFacts | None
) -> list[Repair]:
    """Repairs at start: also verifies every byte of the head. Raises LonghaulError (STORE), see `plan`."""
    return plan(run, survey(run, known, head, check_head=True), known, head, run_id)


# --- deciding (pure) -----------------------------------------------------------------------------------------------


def plan(
    run: RunDir,
    found: Sequence[FoundDir],
    known: Sequence[CheckpointFacts],
    head: CheckpointFacts | None,
    run_id: str,
    live_tokens: Collection[str] = (),
) -> list[Repair]:
    """The repairs, in the order to apply them. (pure)

    live_tokens: running attempts, whose staging directories stay. Raises LonghaulError (STORE) if the store knows
    checkpoints but none is usable; the caller must then touch nothing.
    """
    rows = {Path(facts.path).name: facts for facts in known}
    live = {f"{STAGING_PREFIX}{token}" for token in live_tokens}
    deletions = [
        Repair(Kind.DELETE, item.path, "trash" if item.name.startswith(TRASH_PREFIX) else "staging of a dead attempt")
        for item in found
        if item.name.startswith((TRASH_PREFIX, STAGING_PREFIX)) and item.name not in live
    ]
    strangers = [item for item in found if item.name not in rows and not item.name.startswith(".")]
    chain = _chain(strangers, head, run_id)
    adoptions = [Repair(Kind.ADOPT, item.path, "valid, and continues the head", item.checkpoint_id) for item in chain]
    away = [
        Repair(Kind.QUARANTINE, item.path, _why_not(item, known, head, run_id), is_whole=not item.problem)
        for item in strangers
        if item not in chain
    ]
    damaged, back = _fall_back(run, found, known, head, is_replaced=bool(chain))
    return [*deletions, *away, *damaged, *adoptions, *back]


def _chain(strangers: Sequence[FoundDir], head: CheckpointFacts | None, run_id: str) -> list[FoundDir]:
    """The chain of valid descendants that goes furthest beyond the head. A child's id hashes its parent's: no loops."""
    children: dict[str | None, list[FoundDir]] = {}
    for item in strangers:
        if not item.problem and item.run_id == run_id:
            children.setdefault(item.parent, []).append(item)

    def longest(parent: str | None, step: int) -> list[FoundDir]:
        lines = [
            [item, *longest(item.checkpoint_id, item.step)] for item in children.get(parent, ()) if item.step >= step
        ]
        return max(lines, key=lambda line: (line[-1].step, line[-1].name), default=[])

    return longest(head.checkpoint_id, head.step) if head is not None else longest(None, 0)


def _why_not(item: FoundDir, known: Sequence[CheckpointFacts], head: CheckpointFacts | None, run_id: str) -> str:
    if item.problem:
        return item.problem
    if item.run_id != run_id:
        return f"it belongs to another run ({item.run_id})"
    for facts in known:
        if facts.checkpoint_id == item.checkpoint_id:
            return f"a copy of {facts.path}"
    if head is not None and item.parent == head.checkpoint_id:
        return f"another child of the head goes further, or step {item.step} precedes the head's step {head.step}"
    return "it does not continue the head"


def _fall_back(
    run: RunDir,
    found: Sequence[FoundDir],
    known: Sequence[CheckpointFacts],
    head: CheckpointFacts | None,
    *,
    is_replaced: bool,
) -> tuple[list[Repair], list[Repair]]:
    """Quarantine each damaged committed checkpoint, and walk back if the head is among them.

    is_replaced: a child of the head will be adopted, so a damaged head does not matter. A rebuilt store may know
    checkpoints but no head: the newest then becomes the head.
    """
    at = {item.name: item for item in found}
    committed = [facts for facts in known if facts.state == "committed"]
    usable = [facts for facts in committed if not _problem(at, facts)]
    damaged = [
        Repair(Kind.QUARANTINE, run.root / facts.path, _problem(at, facts), facts.checkpoint_id)
        for facts in committed
        if facts not in usable
    ]
    if is_replaced or (head is None and not known) or (head is not None and not _problem(at, head)):
        return damaged, []
    if not usable:
        raise _refusal(run, at, known)
    new = _nearest(usable, known, head)
    broken = f"the head {head.path} cannot be used: {_problem(at, head)}" if head else "the store names no head"
    return damaged, [Repair(Kind.WALK_BACK, run.root / new.path, broken, new.checkpoint_id)]


def _problem(at: Mapping[str, FoundDir], facts: CheckpointFacts) -> str:
    item = at.get(Path(facts.path).name)
    if item is None:
        return "it is missing"
    if item.problem or item.checkpoint_id == facts.checkpoint_id:
        return item.problem
    return "another checkpoint is in its place"


def _nearest(
    usable: Sequence[CheckpointFacts], known: Sequence[CheckpointFacts], head: CheckpointFacts | None
) -> CheckpointFacts:
    """The newest usable ancestor of the head, or the newest usable checkpoint before it if pruning broke the chain."""
    by_id = {facts.checkpoint_id: facts for facts in known}
    parent = head.parent if head is not None else None
    while parent in by_id:
        if by_id[parent] in usable:
            return by_id[parent]
        parent = by_id[parent].parent
    before = [facts for facts in usable if head is None or facts.step <= head.step]
    return max(before or usable, key=lambda facts: (facts.step, facts.cycle, facts.checkpoint_id))


def _refusal(run: RunDir, at: Mapping[str, FoundDir], known: Sequence[CheckpointFacts]) -> LonghaulError:
    lines = [f"{facts.path}: {_problem(at, facts) or facts.state}" for facts in known]
    return LonghaulError(
        f"none of the {len(known)} checkpoints of this run can be used ({'; '.join(lines[-5:])})",
        kept="all files, unchanged; no new run was started",
        next_command=f"ls -l {run.checkpoints} {run.quarantine}   (restore one from your own backup, then: "
        "python -m orchestrator run)",
        exit_code=ExitCode.STORE,
    )


# --- acting --------------------------------------------------------------------------------------------------------


def apply(run: RunDir, repair: Repair) -> None:
    """Apply a repair to the files. ADOPT and WALK_BACK only concern the store. Safe to repeat."""
    if repair.path.parent.resolve() != run.checkpoints.resolve():
        raise ValueError(f"refused to touch {repair.path}: it is not directly in {run.checkpoints}")
    if repair.kind == Kind.DELETE:
        _delete(run, repair.path)
    elif repair.kind == Kind.QUARANTINE and os.path.lexists(repair.path):
        _quarantine(run, repair)


def _delete(run: RunDir, path: Path) -> None:
    if not path.name.startswith((STAGING_PREFIX, TRASH_PREFIX)):
        raise ValueError(f"refused to remove {path}: neither staging nor trash")
    if path.is_symlink():
        path.unlink()
        return
    if path.is_dir():
        (path / MANIFEST).unlink(missing_ok=True)
    durable.remove_tree_or_leave(path, run.checkpoints)


def _quarantine(run: RunDir, repair: Repair) -> None:
    """Write the reason to NAME.WHY before moving the directory, which stays unchanged as evidence."""
    durable.make_dir(run.quarantine)
    target, number = run.quarantine / repair.path.name, 1
    while os.path.lexists(target):
        number += 1
        target = run.quarantine / f"{repair.path.name}.{number}"
    crash_point("recover.before_quarantine")
    durable.write_file(target.with_name(f"{target.name}.WHY"), f"{repair.reason}\n".encode())
    durable.rename_dir(repair.path, target)
    crash_point("recover.after_quarantine")
