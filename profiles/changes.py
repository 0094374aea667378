"""Compares the profile of a run with the one it is resumed with, and decides whether the changes are allowed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import ChangeKind, knobs, value_of
from profiles.load import load_profile, shipped_profiles
from profiles.refusal import toml_text
from profiles.schema import Profile
from profiles.toml_value import toml_value


class Change(Struct, frozen=True):
    """One changed knob. key: `section.key`."""

    key: str
    old: Any
    new: Any
    kind: ChangeKind


WHAT_KIND_MEANS: dict[ChangeKind, str] = {
    "fixed": "cannot change in this run",
    "guarded": "needs --accept-changes",
    "free": "may change at any time",
}
BARE = "python -m orchestrator run --run NEW-NAME"
"""The command in workers' advice. Typed as it is, it would use the profile `pocket`."""
NOT_A_CHANGE = ("name", "description")
"""Knobs that only name the profile."""


def diff(old: Profile, new: Profile) -> list[Change]:
    """All changed knobs, in the order of the schema."""
    return [
        Change(name, before, after, knob.kind)
        for name, knob in knobs().items()
        if name not in NOT_A_CHANGE and (before := value_of(old, name)) != (after := value_of(new, name))
    ]


def render(changes: Iterable[Change], *, has_begun: bool = True) -> str:
    """One line per change: knob, old and new value, and whether it may change. (pure)

    has_begun: whether the run has a checkpoint. Without one every knob may change, so that part is left out.
    """
    rows = [(c.key, f"{toml_text(c.old)} -> {toml_text(c.new)}", WHAT_KIND_MEANS[c.kind] * has_begun) for c in changes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"  {key:<{widths[0]}}  {values:<{widths[1]}}  {kind}" for key, values, kind in rows]
    return "\n".join(line.rstrip() for line in lines)


def refusal(changes: Iterable[Change], accept_changes: bool, another_run: str) -> LonghaulError | None:
    """The error if a run with a checkpoint cannot resume with these changes; None if it can. (pure)

    another_run: the command that starts another run with the wanted profile.
    """
    changes = list(changes)
    fixed = [change for change in changes if change.kind == "fixed"]
    guarded = [change for change in changes if change.kind == "guarded"]
    if fixed:
        return _refused("cannot go on with another value of", fixed, changes, another_run)
    if guarded and not accept_changes:
        return _refused("was begun with another value of", guarded, changes, "repeat the command with --accept-changes")
    return None


def another_run(profile: Profile) -> str:
    """The command that starts another run with this profile: a shipped profile and every knob that differs from it.

    Uses the shipped profile of the same name, or else the most similar one, because a run does not store the path of
    its profile.
    """
    name = profile.name
    names = [name] if name in shipped_profiles() else shipped_profiles()
    bases = [(name, diff(load_profile(name).profile, profile)) for name in names]
    base, changes = min(bases, key=lambda found: len(found[1]))
    words = [f"--set {shlex.quote(f'{change.key}={_as_toml(change.new)}')}" for change in changes]
    return " ".join([f"{BARE} --profile {base}", *words])


def with_profile(advice: str, profile: Profile) -> str:
    """Complete a worker's advice to start another run with the command for this profile."""
    return advice.replace(BARE, another_run(profile)) if BARE in advice else advice


def _as_toml(value: Any) -> str:
    """A value in the syntax of `--set`. (pure)"""
    if isinstance(value, str) and value == value.strip() != "" and not value.startswith(("'", '"')):
        return value
    return toml_value(value)


def _refused(what: str, culprits: list[Change], changes: list[Change], next_command: str) -> LonghaulError:
    names = ", ".join(change.key for change in culprits)
    return LonghaulError(
        f"the run {what} {names}\n{render(changes)}",
        kept="the run, unchanged; nothing was started",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )
