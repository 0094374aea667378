"""The how-to of docs/code-with-tests.md: short, and its profile trains and validates on programs with tests."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.workers.suites.samples import write_data

TEXT = (REPOSITORY / "docs/code-with-tests.md").read_text(encoding="utf-8")
PROFILE, COMMANDS = re.findall(r"^```(?:toml|bash)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)[:2]
SMALL = {
    'extends = "grpo-1.5b-8gb"': 'extends = "grpo-1.5b-8gb-debug"',
    'prompt_style = "boxed-chat"': 'prompt_style = "boxed"',
}
"""The same path with a tiny random model, which has no chat template."""
FEW = ("run.max_cycles=1", "run.steps_per_cycle=1", "validation.sampled=false")


def test_the_how_to_is_at_most_twenty_lines_beside_blank_ones() -> None:
    lines = [line for text in (PROFILE, COMMANDS) for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 20


def is_wired() -> bool:
    if find_spec("profiles.rewards") is None:
        return False
    return "tests" in import_module("profiles.rewards").BUILT_IN


@pytest.mark.slow
@pytest.mark.skipif(not is_wired(), reason="profiles do not know the part `tests` yet")
def test_the_how_to_trains_and_validates(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    text = PROFILE
    for ours, small in SMALL.items():
        assert ours in text
        text = text.replace(ours, small)
    (tmp_path / "code.toml").write_text(text)
    lines = (data / "mbpp.jsonl").read_text().splitlines()
    (tmp_path / "mbpp-train.jsonl").write_text("\n".join(lines * 4))
    environment = os.environ | {"LONGHAUL_DATA": str(data), "PYTHONPATH": str(REPOSITORY)}
    for line in COMMANDS.splitlines():
        words = shlex.split(line, comments=True)
        more = [word for one in FEW for word in ("--set", one)] if "run" in words else []
        done = subprocess.run(
            [sys.executable, *words[1:], *more], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "the one cycle is done" in done.stdout + done.stderr
