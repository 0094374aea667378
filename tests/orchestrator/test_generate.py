"""generate: a real command, a real worker, a real model; on a terminal, in a pipe, interrupted, beside a run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.display.wording import harmless_lines
from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.orchestrator.test_cli import LATIN_1
from tests.orchestrator.test_evaluate import WEIGHTS, a_run
from tests.terminal import Terminal


def words_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator", "generate", *words]


def command(*words: str, cwd: Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """stdin: bytes that are no UTF-8 as lone surrogates."""
    return subprocess.run(
        words_of(*words), cwd=cwd, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}, capture_output=True,
        encoding="utf-8", errors="surrogateescape", timeout=100, input=stdin,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `night`, whose head of step 20 is the built-in model, and a model that never ends."""
    root = tmp_path_factory.mktemp("place")
    a_run(root / "runs" / "night")
    shutil.copytree(WEIGHTS, root / "endless")
    config = json.loads((root / "endless/config.json").read_text())
    config |= {"eos_token_id": None, "max_position_embeddings": 100_000}
    (root / "endless/config.json").write_text(json.dumps(config))
    (root / "endless/generation_config.json").write_text("{}")
    return root


def test_a_checkpoint_completes_prompts_and_a_seed_gives_the_same_text(place: Path) -> None:
    words = ("--run", "night", "--max-new-tokens", "12", "--json")
    talk = command(
        *words, "--checkpoint", "20", "--interactive", "--seed", "7", cwd=place, stdin="ab\nab\n\n/new\nab\n"
    )
    assert talk.returncode == 0, talk.stderr
    said = [json.loads(line) for line in talk.stdout.splitlines()]
    assert [(one["prompt"], one["seed"]) for one in said] == [("ab", 7), ("ab", 8), ("ab", 9)]
    assert len({one["text"] for one in said}) > 1 and all(1 <= one["tokens"] <= 12 for one in said)
    alone = command(*words, "--prompt", "ab", "--seed", "8", cwd=place)
    assert json.loads(alone.stdout)["text"] == said[1]["text"]
    assert not list((place / "runs/night/readers").iterdir())  # nothing is held any more


def test_the_text_is_streamed_to_standard_output_and_all_else_to_standard_error(place: Path) -> None:
    done = command("--run", "night", "--seed", "3", "--max-new-tokens", "9", cwd=place, stdin="ab")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1 and done.stdout.endswith("\n")
    assert "loading step 20 of run night" in done.stderr and " tokens in " in done.stderr


def test_a_closed_standard_input_has_no_prompt(place: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *words_of("--run", "night")], cwd=place, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE and "there is no prompt" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(["--run", "night"], ExitCode.USAGE, "there is no prompt", id="no prompt"),
        pytest.param(["--prompt", "a", "--top-p", "0"], ExitCode.USAGE, "--top-p 0: more than 0", id="knob"),
        pytest.param(["--prompt", "a", "--run", "night", "--checkpoint", "best"], ExitCode.INPUT,
                     "has no validation yet", id="no best"),
        pytest.param(["--prompt", "a", "--run", "night", "--checkpoint", "21"], ExitCode.INPUT,
                     "it has checkpoints of steps 20", id="no such step"),
        pytest.param(["--prompt", "a", "--run", "night", "--checkpoint", "9" * 20], ExitCode.INPUT,
                     "has no checkpoint of step 99999999999999999999; it has checkpoints of steps 20", id="far step"),
        pytest.param(["--prompt", "a", "--run", "night", "--checkpoint", "²"], ExitCode.INPUT, "has no checkpoint at ",
                     id="no digit"),
        pytest.param(["--prompt", LATIN_1], ExitCode.USAGE, "is not UTF-8, at �: caf�", id="no text"),
        pytest.param(["--prompt", "a", "--model", "adapter"], ExitCode.INPUT, "holds an adapter but no model",
                     id="an adapter"),
        pytest.param(
            ["--prompt", "a", "--model", "empty"], ExitCode.INPUT, "kept:  everything; nothing was asked\nnext:  ls -l",
            id="no weights",
        ),
        pytest.param(["--prompt", "a", "--model", "no"], ExitCode.INPUT, "there is no model directory", id="no model"),
        pytest.param(["--prompt", "a", "--model", "pocket", "--style", "chat"], ExitCode.INPUT, "chat template",
                     id="no template"),
        pytest.param(["--prompt", "a" * 5000, "--run", "night"], ExitCode.INPUT, "cannot be completed", id="too long"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_told_with_a_way_out(words: list[str], code: int, told: str, place: Path) -> None:
    for name in ("adapter", "empty"):
        (place / name).mkdir(exist_ok=True)
    (place / "adapter" / "adapter_config.json").write_text("{}")
    done = command(*words, cwd=place)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "\nkept:  " in done.stderr and "\nnext:  " in done.stderr and not done.stdout


@pytest.mark.parametrize("handler", ["strict", "surrogateescape"])
def test_a_prompt_of_standard_input_that_is_no_text_is_told(handler: str, place: Path) -> None:
    """Python reads with either handler, as the locale has it."""
    given = f"a good line\n{LATIN_1}"
    done = command("--run", "night", cwd=place, stdin=given, PYTHONIOENCODING=f"utf-8:{handler}")
    assert done.returncode == ExitCode.INPUT and not done.stdout
    assert done.stderr.startswith("error: the prompt is not utf-8, at �: a good line⏎caf�\nkept:  everything;")
    assert "\nnext:  iconv -f latin1 -t utf-8 FILE | python -m orchestrator generate\n" in done.stderr


@pytest.mark.parametrize("handler", [pytest.param("strict", marks=pytest.mark.exhaustive), "surrogateescape"])
def test_a_line_that_is_no_text_is_told_and_the_talk_goes_on(handler: str, place: Path) -> None:
    words = ("--run", "night", "--interactive", "--max-new-tokens", "2", "--json")
    talk = command(*words, cwd=place, stdin=f"ab\n{LATIN_1}\nxy\n", PYTHONIOENCODING=f"utf-8:{handler}")
    assert talk.returncode == 0 and "Traceback" not in talk.stderr, talk.stderr
    assert [json.loads(line)["prompt"] for line in talk.stdout.splitlines()] == ["ab", "xy"]
    assert "error: the prompt is not utf-8, at �: caf�\n" in talk.stderr


def test_a_damaged_checkpoint_is_not_read(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    (weights,) = tmp_path.glob("runs/night/checkpoints/*/model.safetensors")
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    done = command("--run", "night", "--prompt", "a", cwd=tmp_path)
    assert done.returncode == ExitCode.INPUT and "model.safetensors was changed" in done.stderr


def wait_for(fact: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := fact():
            return found
        time.sleep(0.02)
    raise TimeoutError


def test_ctrl_c_ends_the_completion_keeps_the_text_and_leaves_nobody_behind(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            words_of("--model", "endless", "--prompt", "ab", "--max-new-tokens", "90000"), cwd=place, stdout=file,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
    wait_for(lambda: out.stat().st_size > 50)
    (worker,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130 and b"stopped as asked" in told and b"Traceback" not in told
    assert out.read_bytes().endswith(b"\n") and out.stat().st_size > 50
    wait_for(lambda: not worker.is_running())


def test_a_killed_command_leaves_no_worker_and_the_next_one_sweeps_its_links(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs", ignore=shutil.ignore_patterns("readers"))
    run = tmp_path / "runs/night"
    process = subprocess.Popen(
        words_of("--run", "night", "--interactive"), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    (worker,) = wait_for(lambda: psutil.Process(process.pid).children())
    process.kill()
    process.communicate()
    wait_for(lambda: not worker.is_running())
    assert list((run / "readers").iterdir())
    assert command("--run", "night", "--prompt", "a", "--max-new-tokens", "1", cwd=tmp_path).returncode == 0
    assert not list((run / "readers").iterdir())


def test_on_a_terminal_one_talks_and_ctrl_c_returns_to_the_prompt(place: Path) -> None:
    words = words_of("--model", str(place / "endless"), "--interactive", "--max-new-tokens", "90000")[1:]
    terminal = Terminal(*words, columns=60, lines=12, input_is_terminal=True)
    try:
        wait_for(lambda: terminal.read(0.05) and "> " in terminal.text)
        os.write(terminal.master, b"ab\n")
        wait_for(lambda: terminal.read(0.05) and len(terminal.raw) > 200)
        assert b"\x1b[31m" not in terminal.raw
        terminal.process.send_signal(signal.SIGINT)
        wait_for(lambda: terminal.read(0.05) and terminal.text.split()[-1] == ">")
        os.write(terminal.master, b"/quit\n")
        assert terminal.process.wait(30) == 0
        assert terminal.process.stderr is not None
        told = terminal.process.stderr.read().decode()
        assert "[stopped as asked: " in told and "Traceback" not in told
    finally:
        terminal.close()


def test_what_a_model_says_cannot_steer_a_terminal() -> None:
    assert harmless_lines("a\x1b[31m\nb\r\u202ec") == "a␛[31m\nb␍�c"
