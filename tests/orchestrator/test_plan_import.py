"""`plan --import` as typed: what is printed, what is written, which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.orchestrator.open_instruct.bundles import GUIDE

CLUSTER = ("--hosts", "8", "--gpus", "4", "--card", "95.6")


def plan(folder: Path, *words: str, settings: dict[str, object] = GUIDE) -> subprocess.CompletedProcess[str]:
    (folder / "guide.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "orchestrator", "plan", "--import", "guide.yaml", *words]
    variables = {"PYTHONPATH": str(REPOSITORY), "PATH": ""}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)


def test_it_tells_the_findings_writes_what_is_right_and_leaves_the_file_alone(tmp_path: Path) -> None:
    words = (*CLUSTER, "--out", "made", "--limit-h", "24", "--step-s", "190")
    done = plan(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "as it is refused:" in done.stdout and "6 findings:" in done.stdout
    assert "fits: 52.0 of 95.3 GiB usable" in done.stdout and "lost work at most: 5 steps, 16 min" in done.stdout
    assert yaml.safe_load((tmp_path / "guide.yaml").read_text()) == GUIDE
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "guide-corrected.yaml",
        "guide-open-instruct.toml",
        "guide-verl.toml",
    }
    corrected = yaml.safe_load((tmp_path / "made" / "guide-corrected.yaml").read_text())
    assert corrected["num_learners_per_node"] == [4, 4, 4, 4] and corrected["vllm_num_engines"] == 8
    assert tomllib.loads((tmp_path / "made" / "guide-verl.toml").read_text())["launch"] == {"time_limit_minutes": 1440}
    again = plan(tmp_path, *words)
    assert again.returncode == ExitCode.INPUT and "never writes over a file" in again.stderr


def test_json_has_the_same_and_nothing_is_written_without_out(tmp_path: Path) -> None:
    done = plan(tmp_path, *CLUSTER, "--json")
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["findings"]][:2] == ["learners", "whole gather"]
    assert set(told["as_it_is"]["refused"]) == {"memory", "engines", "steps"} and told["corrected"]["refused"] == {}
    assert told["written"] == [] and {path.name for path in tmp_path.iterdir()} == {"guide.yaml"}


def test_hosts_that_are_too_few_end_with_71_and_the_number_that_would_do(tmp_path: Path) -> None:
    done = plan(tmp_path, "--hosts", "2", "--gpus", "4", "--card", "95.6", "--out", "made")
    assert (
        done.returncode == ExitCode.CUDA_OOM
        and "no layout of these GPUs fits this job; 5 hosts would do" in done.stdout
    )
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("words", "change", "code", "said"),
    [
        (("--hosts", "8"), {}, ExitCode.USAGE, "--import needs --gpus"),
        ((*CLUSTER, "--profile", "pocket"), {}, ExitCode.USAGE, "--import does not take --profile"),
        (CLUSTER, {"model_name_or_path": "allenai/OLMo-32B"}, ExitCode.INPUT, "is not a published name that is known"),
        (CLUSTER, {"vllm_engines": 3}, ExitCode.INPUT, "vllm_engines: neither upstream nor the fork knows it"),
        (("--hosts", "8", "--gpus", "4"), {}, ExitCode.GPU, "no GPU is known here"),
    ],
)
def test_what_it_cannot_work_with_is_told(
    tmp_path: Path, words: tuple[str, ...], change: dict[str, object], code: ExitCode, said: str
) -> None:
    if code == ExitCode.GPU and any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
        pytest.skip("there may be a GPU here")
    done = plan(tmp_path, *words, settings=GUIDE | change)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


def test_a_model_of_a_family_that_nobody_can_count_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"model_type": "mixtral", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    done = plan(tmp_path, *CLUSTER, settings=GUIDE | {"model_name_or_path": "model"})
    assert done.returncode == ExitCode.INPUT and "is of a family without a record" in done.stderr


def test_the_written_profile_is_planned_with_the_work_that_a_crash_costs(tmp_path: Path) -> None:
    assert plan(tmp_path, *CLUSTER, "--out", "made").returncode == 0

    def of_profile(*words: str) -> subprocess.CompletedProcess[str]:
        profile = ("--profile", "made/guide-open-instruct.toml", "--card", "95.6")
        command = [sys.executable, "-m", "orchestrator", "plan", *profile, *words]
        variables = {"PYTHONPATH": str(REPOSITORY), "PATH": ""}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    done = of_profile("--limit-h", "24", "--step-s", "190")
    assert done.returncode == 0, done.stderr
    assert "fits: 52.0 of 95.3 GiB usable" in done.stdout
    assert "lost work at most: 5 steps, 16 min" in done.stdout
    told = json.loads(of_profile("--json").stdout)
    assert (told["engine"], told["learners"], told["checkpoint_every"]) == ("open-instruct", [4, 4, 4, 4], 5)
    other = of_profile("--set", "run.checkpoint_every=2")
    assert other.returncode == ExitCode.INPUT and "checkpoint_state_freq is 5" in other.stderr
