"""What differs between the profile that a run began with and the one it is resumed with, and whether it may. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import ChangeKind, knobs, value_of
from profiles.refusal import shown
from profiles.schema import Profile


class Change(Struct, frozen=True):
    """One knob with another value. key: `section.key`."""

    key: str
    old: Any
    new: Any
    kind: ChangeKind


WHAT_KIND_MEANS: dict[ChangeKind, str] = {
    "fixed": "cannot change in this run",
    "guarded": "needs --accept-changes",
    "free": "may change at any time",
}
NOT_A_CHANGE = ("name", "description")
"""They name the profile and change nothing that a worker does."""


def diff(old: Profile, new: Profile) -> list[Change]:
    """All knobs whose value differs, in the order of the schema."""
    return [
        Change(name, before, after, knob.kind)
        for name, knob in knobs().items()
        if name not in NOT_A_CHANGE and (before := value_of(old, name)) != (after := value_of(new, name))
    ]


def render(changes: Iterable[Change]) -> str:
    """One line a change: knob, old value, new value, what that means."""
    rows = [(c.key, f"{shown(c.old)} -> {shown(c.new)}", WHAT_KIND_MEANS[c.kind]) for c in changes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return "\n".join(f"  {key:<{widths[0]}}  {values:<{widths[1]}}  {kind}" for key, values, kind in rows)


def refusal(changes: Iterable[Change], accept_changes: bool) -> LonghaulError | None:
    """Why a run may not go on with these changes; None where it may."""
    changes = list(changes)
    fixed = [change for change in changes if change.kind == "fixed"]
    guarded = [change for change in changes if change.kind == "guarded"]
    if fixed:
        command = "python -m orchestrator run --run NEW-NAME"
        return _refused("cannot go on with another value of", fixed, changes, command)
    if guarded and not accept_changes:
        return _refused("was begun with another value of", guarded, changes, "repeat the command with --accept-changes")
    return None


def _refused(what: str, culprits: list[Change], changes: list[Change], next_command: str) -> LonghaulError:
    names = ", ".join(change.key for change in culprits)
    return LonghaulError(
        f"the run {what} {names}\n{render(changes)}",
        kept="the run as it is; nothing was started",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )
