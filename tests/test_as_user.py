"""The tests as an ordinary user, started by root: a user, a copy of the tree, and nothing of either left behind."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY

SCRIPT = ["bash", str(REPOSITORY / "scripts/as-user.sh")]
FACTS = """
import os, pwd, sys
from pathlib import Path
import orchestrator, pytest, torch
print("facts", os.getuid(), pwd.getpwuid(os.getuid()).pw_shell, orchestrator.__file__, os.getcwd())
print("writes", os.access(".", os.W_OK), os.access(sys.argv[1], os.W_OK))
sys.exit(3)
"""


def users() -> set[str]:
    return {one.pw_name for one in pwd.getpwall()}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_runs_a_command_as_a_user_with_a_tree_of_its_own_and_leaves_nothing() -> None:
    before = users()
    python = [".venv/bin/python", "-c", FACTS, str(REPOSITORY)]
    done = subprocess.run([*SCRIPT, *python], capture_output=True, text=True)
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 3, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    uid, shell, module, folder = said["facts"].split()
    assert int(uid) not in (0, 65_534) and shell == "/bin/sh"
    assert Path(module).is_relative_to(folder) and not Path(folder).exists()
    assert said["writes"] == "True False"
    assert users() == before


@pytest.mark.skipif(os.getuid() == 0, reason="needs an ordinary user")
def test_an_ordinary_user_is_told_that_there_is_nothing_to_do(tmp_path: Path) -> None:
    command = ["touch", str(tmp_path / "ran")]
    done = subprocess.run([*SCRIPT, *command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("as a user: skipped") and list(tmp_path.iterdir()) == []
