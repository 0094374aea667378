"""What differs between the profile that a run began with and the one it is resumed with, and whether it may."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import ChangeKind, knobs, value_of
from profiles.load import load_profile, shipped_profiles
from profiles.refusal import toml_text
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
BARE = "python -m orchestrator run --run NEW-NAME"
"""As workers say it; a person who types just this gets the profile `pocket`."""
NOT_A_CHANGE = ("name", "description")
"""They name the profile and change nothing that a worker does."""


def diff(old: Profile, new: Profile) -> list[Change]:
    """All knobs whose value differs, in the order of the schema."""
    return [
        Change(name, before, after, knob.kind)
        for name, knob in knobs().items()
        if name not in NOT_A_CHANGE and (before := value_of(old, name)) != (after := value_of(new, name))
    ]


def render(changes: Iterable[Change], *, has_begun: bool = True) -> str:
    """One line a change: knob, old value, new value, what that means. (pure)

    has_begun: the run has a checkpoint; without one every knob may change, and nothing is said of it.
    """
    rows = [(c.key, f"{toml_text(c.old)} -> {toml_text(c.new)}", WHAT_KIND_MEANS[c.kind] * has_begun) for c in changes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"  {key:<{widths[0]}}  {values:<{widths[1]}}  {kind}" for key, values, kind in rows]
    return "\n".join(line.rstrip() for line in lines)


def refusal(changes: Iterable[Change], accept_changes: bool, another_run: str) -> LonghaulError | None:
    """Why a run that has a checkpoint may not go on with these changes; None where it may. (pure)

    another_run: the command that begins a run with what is wanted.
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
    """The command that begins another run with just this profile: a shipped one's name, and each knob that differs.

    Of the shipped ones that of the same name, else the one with least differences: where a profile's own file lies is
    not stored.
    """
    name = profile.name
    names = [name] if name in shipped_profiles() else shipped_profiles()
    bases = [(name, diff(load_profile(name).profile, profile)) for name in names]
    base, changes = min(bases, key=lambda found: len(found[1]))
    words = [f"--set {shlex.quote(f'{change.key}={_as_toml(change.new)}')}" for change in changes]
    return " ".join([f"{BARE} --profile {base}", *words])


def with_profile(advice: str, profile: Profile) -> str:
    """Advice of a worker that ends in another run: with the command that begins it with this profile."""
    return advice.replace(BARE, another_run(profile)) if BARE in advice else advice


def _as_toml(value: Any) -> str:
    """A value as `--set` reads it. (pure)"""
    if isinstance(value, str) and value == value.strip() != "" and not value.startswith(("'", '"')):
        return value
    return json.dumps(value, ensure_ascii=False)


def _refused(what: str, culprits: list[Change], changes: list[Change], next_command: str) -> LonghaulError:
    names = ", ".join(change.key for change in culprits)
    return LonghaulError(
        f"the run {what} {names}\n{render(changes)}",
        kept="the run, unchanged; nothing was started",
        next_command=next_command,
        exit_code=ExitCode.INPUT,
    )
