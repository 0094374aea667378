"""A package that is not installed: every command says which, that nothing was changed, and what to type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS
from orchestrator.packages import NEEDS, OWN, PACKAGES
from tests import REPOSITORY


def environment_without(folder: Path, *missing: str) -> Path:
    """All that is installed here, but for some packages, as a folder of links."""
    site = folder / "site"
    site.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if re.split(r"[-.]", entry.name)[0] not in missing and entry.suffix not in (".pth", ".egg-link"):
            (site / entry.name).symlink_to(entry)
    return site


def run_without(folder: Path, command: str, *missing: str, then: tuple[str, ...] = ()) -> tuple[int, str, bool]:
    """The exit code, all that was said, and whether anything was written, of a Python that has the rest."""
    site, place = environment_without(folder, *missing), folder / "place"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-S", "-m", "orchestrator", command, *then], cwd=place, capture_output=True, text=True,
        timeout=60, env={**os.environ, "PYTHONPATH": f"{site}:{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, any(place.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_is_missing(command: str, tmp_path: Path) -> None:
    missing = NEEDS.get(command, OWN)
    code, said, has_written = run_without(tmp_path, command, *missing)
    assert code == 66 and not has_written and "Traceback" not in said
    error, kept, following = said.splitlines()
    assert error == f"error: not installed: {', '.join(PACKAGES[name] for name in missing)}, which `{command}` needs"
    assert kept == "kept:  nothing was started or changed" and following.startswith("next:  make setup")


def test_what_workers_alone_need_is_missed_before_one_is_started_and_not_by_who_only_looks(tmp_path: Path) -> None:
    code, said, has_written = run_without(tmp_path, "run", "torch", "transformers", then=("--profile", "fake"))
    assert code == 66 and not has_written and "not installed: torch, transformers, which `run` needs" in said
    (tmp_path / "other").mkdir()
    _, said, _ = run_without(tmp_path / "other", "status", "torch", "transformers")
    assert "not installed" not in said and "Traceback" not in said and "error: " in said  # there is no run


def test_doctor_tells_of_what_others_need(tmp_path: Path) -> None:
    code, said, _ = run_without(tmp_path, "doctor", "sqlite_utils", "rich")
    assert code == 66 and "not installed: sqlite-utils, rich" in said and "make setup" in said


def test_a_module_that_is_missing_for_another_reason_stays_loud(tmp_path: Path) -> None:
    code, said, _ = run_without(tmp_path, "run", "sqlite_fts4")
    assert code == 1 and said.endswith("ModuleNotFoundError: No module named 'sqlite_fts4'\n")


def test_the_packages_are_those_of_the_project() -> None:
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    assert list(PACKAGES.values()) == [re.split(r"[>=<]", one)[0] for one in listed]
    assert set(NEEDS) < set(COMMANDS) and set(OWN) < set(PACKAGES)
