"""Decides which checkpoints to keep. (pure)

orchestrator/commit.py marks the others and state/trash.py removes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

MIN_VERIFIED = 2
"""Always keep this many verified checkpoints, if there are that many."""


@dataclass(frozen=True)
class Kept:
    """A committed checkpoint, as the rule sees it."""

    checkpoint_id: str
    parent: str | None
    cycle: int
    step: int
    bytes: int = 0
    verified: bool = False
    """Every byte was hashed since it was written."""
    best_for: tuple[str, ...] = ()
    """Suites on which it has the best validation."""
    is_cycle_end: bool = False


@dataclass(frozen=True)
class Rule:
    keep_ancestors: int = 2
    keep_every: int = 10
    """Keep every Nth cycle's end; 0 keeps none."""


def to_delete(
    checkpoints: Sequence[Kept], rule: Rule, head_id: str, lost: Mapping[str, str | None] = MappingProxyType({})
) -> list[Kept]:
    """Checkpoints to delete, oldest first.

    Until the head is verified, its nearest verified ancestor counts as the head, because a fallback would use it.
    Everything newer stays. Deletes nothing if the head is unknown or no ancestor is verified. lost: checkpoint_id ->
    parent of those that were damaged; an older ancestor stays in the place of each.
    """
    by_id = {entry.checkpoint_id: entry for entry in checkpoints}
    parents = {**lost, **{entry.checkpoint_id: entry.parent for entry in checkpoints}}
    ordered = sorted(by_id.values(), key=_age)
    line = [head_id, *_ancestors(by_id, parents, head_id, len(by_id))] if head_id in by_id else []
    anchor = next((by_id[name] for name in line if by_id[name].verified), None)
    if anchor is None:
        return []
    keep = {entry.checkpoint_id for entry in ordered if _stays(entry, rule) or _age(entry) >= _age(anchor)}
    near = _ancestors(by_id, parents, anchor.checkpoint_id, rule.keep_ancestors)
    keep |= {*line[: line.index(anchor.checkpoint_id)], *near}
    for entry in reversed(ordered):
        if sum(by_id[kept].verified for kept in keep if kept in by_id) >= MIN_VERIFIED:
            break
        if entry.verified:
            keep.add(entry.checkpoint_id)
    return [entry for entry in ordered if entry.checkpoint_id not in keep]


def _age(entry: Kept) -> tuple[int, int, str]:
    return entry.step, entry.cycle, entry.checkpoint_id


def _stays(entry: Kept, rule: Rule) -> bool:
    """Whether it stays regardless of the head: it is a best checkpoint, or an Nth cycle's end."""
    is_nth = rule.keep_every > 0 and entry.is_cycle_end and entry.cycle % rule.keep_every == 0
    return bool(entry.best_for) or is_nth


def _ancestors(by_id: Mapping[str, Kept], parents: Mapping[str, str | None], head_id: str, count: int) -> list[str]:
    """The nearest `count` ancestors that still exist."""
    found: list[str] = []
    seen, parent = {head_id}, parents[head_id]
    while parent is not None and parent in parents and len(found) < count and parent not in seen:
        seen.add(parent)
        if parent in by_id:
            found.append(parent)
        parent = parents[parent]
    return found
