"""What processes of ours get of the environment, and where their modules come from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.launchers.environment import MORE_VARIABLE, clean_environment, logins, passed_on
from orchestrator.line_worker import started
from profiles.errors import LonghaulError
from state import python
from tests import REPOSITORY
from tests.faults.harness import scene
from workers.line_contract import Note
from workers.verifiers.symbolic import Symbolic

PASSED = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR",
    "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NCCL_DEBUG", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY",
    "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_ALLOC_CONF", "TRITON_CACHE_DIR", "HF_HOME", "HF_HUB_OFFLINE",
    "VLLM_LOGGING_LEVEL", "SLURM_JOB_ID", "RAY_ADDRESS", "PYTHONHASHSEED", "COVERAGE_PROCESS_START", "CC",
    "CUBLAS_WORKSPACE_CONFIG",
    "LONGHAUL_DATA", "LONGHAUL_CRASHPOINT", "VIRTUAL_ENV", "SSL_CERT_FILE", "MASTER_ADDR",
)  # fmt: skip
WITHHELD = (
    "GITHUB_PAT", "MYSQL_PWD", "DATABASE_URL", "SLACK_WEBHOOK", "PGPASSWORD", "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "NVIDIA_API_KEY", "VLLM_API_KEY", "SLURM_JWT", "RAY_AUTH_TOKEN",
    "SSH_AUTH_SOCK", "GPG_AGENT_INFO", "KUBECONFIG", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY", "PIP_INDEX_URL",
    "SENTRY_DSN",
    "MY_THING",
)  # fmt: skip


@pytest.mark.parametrize("name", PASSED)
def test_what_libraries_and_machines_need_is_passed_on(name: str) -> None:
    assert passed_on({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("name", WITHHELD)
def test_what_is_not_named_or_looks_like_a_login_is_withheld(name: str) -> None:
    assert passed_on({name: "value"}) == {}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "HF_ENDPOINT"])
@pytest.mark.parametrize(
    ("value", "is_passed"),
    [
        ("http://proxy.example:3128", True),
        ("http://proxy.example/a@b", True),
        ("http://me:word@proxy.example:3128", False),
        ("http://word@proxy.example", False),
        ("//me:word@proxy.example", False),
    ],
)
def test_a_proxy_with_a_login_in_its_address_is_withheld(name: str, value: str, is_passed: bool) -> None:
    assert passed_on({name: value}) == ({name: value} if is_passed else {})


def test_a_person_may_name_more() -> None:
    before = {MORE_VARIABLE: "HF_TOKEN, MY_THING", "HF_TOKEN": "t", "MY_THING": "m", "OTHER": "o"}
    assert passed_on(before) == {name: value for name, value in before.items() if name != "OTHER"}


def test_what_belongs_to_a_job_is_not_handed_on_by_a_command_that_runs_inside_it() -> None:
    inside = {"LONGHAUL_MAILBOX": "/shared/attempt", "LONGHAUL_RESTART": "1", "LONGHAUL_DATA": "/data"}
    assert passed_on(inside) == {"LONGHAUL_DATA": "/data"}


def test_a_tracker_alone_gets_its_login_and_the_proxy_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WANDB_API_KEY": "k", "HTTPS_PROXY": "http://me:word@p", "GITHUB_PAT": "g"}.items():
        monkeypatch.setenv(name, value)
    found = logins(["WANDB_"])
    assert (found["WANDB_API_KEY"], found["HTTPS_PROXY"]) == ("k", "http://me:word@p") and "GITHUB_PAT" not in found
    assert logins([]) == {}
    assert {"WANDB_API_KEY", "HTTPS_PROXY", "GITHUB_PAT"}.isdisjoint(clean_environment("r", "t", ""))


def test_a_worker_of_a_run_has_none_of_the_secrets(tmp_path: Path) -> None:
    secrets = {name: "hidden" for name in WITHHELD}
    with scene(tmp_path / "run") as run:
        master = run.start("worker.before_update:4:sleep", env=secrets)
        master.wait_for(lambda: run.head_step() == 2)
        for process in run.processes():
            assert not set(process.environ()) & set(secrets)
        assert run.processes()


# --- where modules come from ------------------------------------------------------------------------------------------

HOSTILE = ("workers", "state", "profiles", "torch", "json", "msgspec", "logging", "numpy", "psutil", "transformers")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working directory with files that are named like modules, each of which leaves a trace when it is executed."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    for name in HOSTILE:
        trace = tmp_path / f"executed-{name}"
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'w').close()\nraise SystemExit('hostile {name}')\n")
    return folder


def executed(hostile: Path) -> list[str]:
    return sorted(path.name for path in hostile.parent.glob("executed-*"))


def orchestrator(hostile: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments], cwd=hostile, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
    )  # fmt: skip


def test_a_run_executes_nothing_that_lies_in_the_working_directory(hostile: Path) -> None:
    sets = ["--set", "run.max_cycles=1", "--set", "run.steps_per_cycle=2", "--set", "fake.step_s=0"]
    done = orchestrator(hostile, "run", "--profile", "fake", "--plain", *sets)
    assert (done.returncode, executed(hostile)) == (0, []), done.stderr
    assert (hostile / "runs/fake/state.db").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_workers_execute_nothing_that_lies_in_the_working_directory(hostile: Path) -> None:
    done = orchestrator(hostile, "run", "--profile", "pocket-debug", "--plain", "--seeding-only")
    assert (done.returncode, executed(hostile)) == (0, []), done.stdout + done.stderr
    for words in (
        ["generate", "--prompt", "def f(x):", "--max-new-tokens", "2"],
        ["evaluate", "--on", "pocket", "--examples", "2"],
        ["data", "stats", "pocket-debug"],
    ):
        done = orchestrator(hostile, *words)
        assert executed(hostile) == [], words
        assert "hostile" not in done.stdout + done.stderr and "without a message" not in done.stderr


def test_doctor_executes_nothing_that_lies_in_the_working_directory(hostile: Path) -> None:
    done = orchestrator(hostile, "doctor", "--json")
    assert executed(hostile) == [], done.stderr
    sandbox = next(one for one in json.loads(done.stdout) if one["check"].startswith("sandbox"))
    assert "could not be tested" not in sandbox["detail"]


def test_line_workers_and_helpers_of_workers_execute_nothing_of_it(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    other = started("workers.generate", Note("not a spec"), name="generation", kept="all")
    with other as worker, pytest.raises(LonghaulError, match="missing"):
        list(worker.hear())
    with Symbolic() as symbolic:
        assert symbolic.compare("2", r"\sqrt{4}").is_equal
    assert executed(hostile) == []


def test_an_empty_part_of_PYTHONPATH_is_left_out() -> None:
    found = python.finding_us({"PYTHONPATH": f":/mine::{REPOSITORY}:", "A": "b"})
    assert found == {"PYTHONPATH": f"{REPOSITORY}:/mine", "PYTHONSAFEPATH": "1", "A": "b"}
