"""Refuses a job of open-instruct that could not work: `python -m workers.open_instruct.check < profile.json`.

Asked are git, the file system and the YAML. Nothing of open-instruct is imported or started.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from profiles.harmless import harmless
from profiles.open_instruct.document import Settings
from profiles.open_instruct.guide import settings_to_start
from profiles.schema import Profile
from workers.external.asked import answer, refused
from workers.open_instruct.command import ENTRY

REPOSITORY = "https://github.com/allenai/open-instruct"
GIT_S = 60.0


@dataclass(frozen=True)
class Setup:
    """Everything that a job starts from, absolute."""

    source: Path
    python: Path
    settings: Settings


def check(profile: Profile) -> Setup:
    """Raises LonghaulError (INPUT) with the command that would put it right."""
    if not profile.open_instruct.source:
        clone = f"git clone {REPOSITORY} DIR && git -C DIR checkout {profile.open_instruct.commit}"
        raise refused(
            "open_instruct.source names no checkout of open-instruct",
            f"{clone}, then the same command with --set open_instruct.source=DIR",
        )
    source = Path(profile.open_instruct.source).expanduser().absolute()
    check_commit(source, profile.open_instruct.commit)
    # Not resolved: an environment is known by the link that its interpreter is.
    python = Path(profile.open_instruct.python or source / ".venv" / "bin" / "python").expanduser().absolute()
    if not python.is_file() or not os.access(python, os.X_OK):
        raise refused(
            f"{harmless(str(python))} is no interpreter (open_instruct.python)",
            f"cd {_word(source)} && uv sync, or the same command with --set open_instruct.python=FILE",
        )
    return Setup(source, python, settings_to_start(profile.open_instruct.guide, profile.run))


def check_commit(source: Path, commit: str) -> None:
    """Raises LonghaulError (INPUT) where the checkout is not the pinned commit, unchanged."""
    where = _word(source)
    found = _git(source, "rev-parse", "HEAD")
    if found != commit:
        raise refused(
            f"{harmless(str(source))} is at {harmless(found)[:40]}, and the run is pinned to {commit}",
            f"git -C {where} fetch origin {commit} && git -C {where} checkout {commit}",
        )
    changed = _git(source, "status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        raise refused(
            f"{harmless(str(source))} has {len(changed)} changed files, so it is not the pinned commit: "
            f"{harmless(changed[0].strip())}",
            f"git -C {where} stash",
        )
    if not (source / ENTRY).is_file():
        raise refused(f"{harmless(str(source))} has no {ENTRY}", f"git -C {where} status")


def _git(source: Path, *words: str) -> str:
    """Raises LonghaulError (INPUT) where git is missing, refuses or hangs."""
    command = ["git", "-C", str(source), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=GIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise refused(f"git cannot be asked about {harmless(str(source))}: {error}", shlex.join(command)) from error
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"git ended with {done.returncode}"
        raise refused(f"{harmless(str(source))} is no checkout: {harmless(last)}", shlex.join(command))
    return done.stdout.strip()


def _word(path: Path) -> str:
    return shlex.quote(harmless(str(path)))


if __name__ == "__main__":
    raise SystemExit(answer(check))
