"""The code of docs/python.md, as a reader types it, but with the short profile of the same model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import longhaul
from tests import REPOSITORY


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_code_of_the_guide_runs_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/python.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    code = (
        "\n".join(blocks)
        .replace('"pocket-grpo"', '"pocket-grpo-debug"')
        .replace('"run.max_cycles": 8', '"run.max_cycles": 1')
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "mean/sampled_accuracy" in told.stdout and "did you mean seed?" in told.stdout
    assert longhaul.open_run("night", tmp_path / "runs").status().state == "finished"
