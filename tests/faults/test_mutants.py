"""The replay of power cuts finds what is missing: with one fsync or one order taken away, it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import REPOSITORY

PACKAGES = ("orchestrator", "profiles", "state", "tests", "workers")


@dataclass(frozen=True)
class Mutant:
    """One change of one file: `old`, which stands there once, becomes `new`."""

    file: str
    old: str
    new: str = ""


MUTANTS = {
    "the folder of a checkpoint is not synced before it gets its name": Mutant(
        "state/checkpoint.py",
        '            durable.fsync_dir(staging)\n            crash_point("ckpt.before_rename")\n',
        '            crash_point("ckpt.before_rename")\n',
    ),
    "files of a checkpoint are not synced": Mutant(
        "state/checkpoint.py", "        durable.fsync_file(path)\n        folders.update", "        folders.update"
    ),
    "the name of a checkpoint is not synced": Mutant(
        "state/durable.py",
        "        source.rename(target)\n        fsync_dir(target.parent)\n",
        "        source.rename(target)\n",
    ),
    "a new file is not synced": Mutant(
        "state/durable.py",
        "            view = view[os.write(fd, view) :]\n        os.fsync(fd)\n",
        "            view = view[os.write(fd, view) :]\n",
    ),
    "a new directory is not synced into its parent": Mutant(
        "state/durable.py",
        "                folder.mkdir(mode=0o700)\n                fsync_dir(folder.parent)\n",
        "                folder.mkdir(mode=0o700)\n",
    ),
    "a log that is appended to is not synced into its directory": Mutant(
        "state/durable.py",
        '!= b"\\n"\n            fsync_dir(path.parent)\n',
        '!= b"\\n"\n',
    ),
    "events are not synced before the checkpoint of their steps": Mutant(
        "workers/runtime.py", "        self._events.sync()\n", "        pass\n"
    ),
}


def test_what_a_mutant_takes_away_stands_in_its_file_once() -> None:
    found = {name: (REPOSITORY / one.file).read_text().count(one.old) for name, one in MUTANTS.items()}
    assert set(found.values()) == {1}, found


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_replay_finds(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    file = tmp_path / mutant.file
    file.write_text(file.read_text().replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", "tests/faults/test_replay.py"]
    tried = subprocess.run(
        [*command, "-m", "slow"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 1, f"no cut found it\n{tried.stdout[-3000:]}"
