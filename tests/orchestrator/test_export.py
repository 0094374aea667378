"""export: whole or not at all, never over what is there, killed where it hurts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.orchestrator.test_evaluate import WEIGHTS, a_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `night`, whose head of step 20 is the built-in model."""
    root = tmp_path_factory.mktemp("place")
    a_run(root / "runs" / "night")
    return root


def command(*words: str, cwd: Path, crash: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_CRASHPOINT": crash}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "export", *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_a_kill_before_the_name_is_given_leaves_none_and_the_next_command_cleans_up(place: Path) -> None:
    words = ("--merged", "--out", "models/night")
    killed = command(*words, cwd=place, crash="export.before_rename:1:kill")
    assert killed.returncode == -signal.SIGKILL
    assert [path.name[:12] for path in (place / "models").iterdir()] == [".night.half-"]
    (place / "models/night").mkdir()  # an empty one makes room
    done = command(*words, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (place / "models").iterdir()] == ["night"]
    facts = json.loads(done.stdout)
    assert (facts["run"], facts["step"], facts["kind"]) == ("night", 20, "merged")
    with (
        safe_open(place / "models/night/model.safetensors", "pt") as ours,
        safe_open(WEIGHTS / "model.safetensors", "pt") as theirs,
    ):
        assert set(ours.keys()) == set(theirs.keys())
    assert not list((place / "runs/night/readers").iterdir())


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(["--merged", "--out", "full"], ExitCode.INPUT, "is not empty", id="full directory"),
        pytest.param(["--merged", "--out", "file"], ExitCode.INPUT, "is not a directory", id="file"),
        pytest.param(["--merged", "--out", "link"], ExitCode.INPUT, "is not a directory", id="link"),
        pytest.param(
            ["--merged", "--out", "file/x"], ExitCode.INPUT, "file/x cannot be used: Not a dir", id="in a file"
        ),
        pytest.param(["--merged", "--out", "/proc/x/y"], ExitCode.INPUT, "/proc/x/y cannot be used", id="in /proc"),
        pytest.param(["--merged", "--out", "x" * 300], ExitCode.INPUT, "File name too long", id="a long name"),
        pytest.param(["--out", "x"], ExitCode.USAGE, "one of the arguments --adapter", id="no kind"),
        pytest.param(["--adapter", "--out", "x"], ExitCode.INPUT, "has no adapter", id="no adapter"),
        pytest.param(["--merged", "--out", "x", "--checkpoint", "7"], ExitCode.INPUT, "steps 20", id="no such step"),
    ],
)
def test_what_cannot_be_done_is_told_and_leaves_nothing(words: list[str], code: int, told: str, place: Path) -> None:
    (place / "full").mkdir(exist_ok=True)
    (place / "full" / "mine").write_text("kept")
    (place / "file").write_text("kept")
    if not (place / "link").is_symlink():
        (place / "link").symlink_to(place / "elsewhere")
    before = sorted(path.name for path in place.iterdir())
    done = command(*words, "--run", "night", cwd=place)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sorted(path.name for path in place.iterdir()) == before
    assert [path.name for path in (place / "full").iterdir()] == ["mine"]


def test_what_llama_cpp_needs_is_told_as_a_command(place: Path) -> None:
    done = command("--gguf-ready", "--out", "gguf", cwd=place)
    assert done.returncode == 0, done.stderr
    assert f"convert_hf_to_gguf.py {place / 'gguf'} --outfile {place / 'gguf'}.gguf --outtype bf16" in done.stdout
