"""What `run` refuses before a job is submitted: the real command, with verl as it is installed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Profile
from tests import REPOSITORY
from tests.workers.verl.test_settings import needs_verl
from workers.verl.check import check_targets, check_trl


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "run", "--profile", "verl-debug", *words]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, env=environment)


@needs_verl
def test_tensor_parallelism_that_does_not_divide_the_heads_is_refused_and_nothing_begins(tmp_path: Path) -> None:
    done = run(tmp_path, "--set", "run.gpus=3", "--set", "verl.tensor_parallel=3", "--set", "grpo.groups_per_step=3")
    assert done.returncode == ExitCode.INPUT
    assert "does not divide the 4 attention heads of pocket-words" in done.stderr
    assert "kept:  everything; nothing was submitted" in done.stderr and "N one of 1, 2, 4" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_targets_that_the_model_computes_in_one_layer_are_refused_with_its_own_names() -> None:
    profile = Profile(name="x", adapter=Adapter(rank=4))
    check_targets(profile, {"model_type": "qwen3"})
    check_targets(Profile(name="x"), {"model_type": "phi3"})
    with pytest.raises(LonghaulError, match="phi3 has o_proj, down_proj, qkv_proj, gate_up_proj") as caught:
        check_targets(profile, {"model_type": "phi3"})
    assert "adapter.targets=" in caught.value.next_command and "qkv_proj" in caught.value.next_command


@pytest.mark.parametrize(
    ("place", "is_refused"),
    [("experimental/gkd", True), ("experimental/ppo", False), ("models/modeling_value_head.py", False)],
)
def test_a_trl_whose_class_verl_does_not_find_is_refused(
    place: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three releases of TRL by what their folders hold; 1.16.0 is the first, and ended verl with an ImportError."""
    (tmp_path / "trl" / place).mkdir(parents=True)
    (tmp_path / "trl/__init__.py").touch()
    (about := tmp_path / "trl-1.16.0.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 1.16.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    if not is_refused:
        return check_trl()
    with pytest.raises(LonghaulError, match=r"trl 1\.16\.0 is installed") as caught:
        check_trl()
    assert (caught.value.exit_code, caught.value.next_command) == (ExitCode.INPUT, "pip uninstall trl")
    return None
