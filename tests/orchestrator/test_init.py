"""`init`: from an empty folder to a running job, and everything that can be typed wrongly on the way."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from orchestrator.cli import main, parse
from orchestrator.commands import init as command
from orchestrator.new_job.hardware import CARDS
from profiles.errors import ExitCode
from profiles.knobs import sections
from tests import REPOSITORY
from tests.terminal import Terminal
from workers.pocket.word_problems.problems import answer_of, draw_problems

Init = Callable[..., tuple[int, str, str]]


def problems(path: Path, prompt: str = "prompt", answer: str = "answer", count: int = 48) -> Path:
    rows = [{prompt: one.text, answer: answer_of(one), "steps": len(one.steps)} for one in draw_problems(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Init:
    """Runs `init` in an empty folder without a terminal, and returns exit code, output and errors."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["init", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


QUICK = ("--model", "pocket-words", "--card", "cpu", "--no-dry-run", "--yes")


def longhaul(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As a stranger types it, in a folder that is not the repository."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder.parent)}
    environment.pop("LONGHAUL_DATA", None)
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_empty_folder_becomes_a_running_job_on_own_data(tmp_path: Path) -> None:
    problems(tmp_path / "mine.jsonl")
    job, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    job.mkdir()
    elsewhere.mkdir()
    done = longhaul(job, "init", "--model", "pocket-words", "--data", "../mine.jsonl", "--card", "cpu", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "48 rows; the first:\n  prompt  text" in done.stdout and "dry run of job: done" in done.stdout
    assert "problems: 16 problems from mine.jsonl" in done.stdout  # the dry run reads them, too
    assert done.stdout.endswith("start    python -m orchestrator run --profile ./job.toml\n")
    assert {path.name for path in job.iterdir()} == {"job.toml", "rewards.py"}
    short = ("--max-cycles", "1", "--set", "run.steps_per_cycle=2", "--set", "validation.examples_per_task=4")
    ran = longhaul(elsewhere, "run", "--profile", "../job/job.toml", *short)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"problems: \d\d problems from mine.jsonl\n", ran.stdout)
    assert "checkpoint of step 2 is durable" in ran.stdout
    assert (elsewhere / "runs" / "job" / "state.db").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("workers.rewards.functions") is None, reason="no functions of the user's own")
@pytest.mark.skipif("data.columns" not in sections(), reason="no columns of other names")
def test_an_own_reward_on_other_columns_passes_its_dry_run(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    problems(tmp_path / "mine.jsonl", "story", "solution")
    words = ("--data", "../mine.jsonl", "--reward", "correct,own", "--card", "cpu", "--yes")
    done = longhaul(tmp_path / "job", "init", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dry run of job: done" in done.stdout


@pytest.mark.slow
def test_ctrl_c_in_the_dry_run_keeps_both_files(tmp_path: Path) -> None:
    words = ["init", "--data", "pocket-words", "--model", "pocket-words", "--card", "cpu", "--yes"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    (tmp_path / "job").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=tmp_path / "job",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    before = "".join(iter(process.stdout.readline, "run 'rehearsal' begins\n"))
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 130 and "-- dry run" in before and errors == "", said + errors
    assert "the dry run of job ended early: asked to stop; " in said and "are complete\n" in said
    assert {path.name for path in (tmp_path / "job").iterdir()} == {"job.toml", "rewards.py"}


def test_nothing_but_yes_takes_the_data_that_are_there_and_the_built_in_model(init: Init) -> None:
    problems(Path("train.jsonl"))
    code, said, _ = init("--yes", "--no-dry-run", "--card", "cpu")
    assert code == 0 and "asked    prompt;  right answers: answer" in said
    table = tomllib.loads(Path("here.toml").read_text())
    assert table["extends"] == "pocket-grpo" and table["data"]["tasks"] == str(Path("train.jsonl").absolute())
    assert "def brief(problem, completion, facts):" in Path("rewards.py").read_text()


def test_flags_name_folder_and_run(init: Init) -> None:
    code, said, _ = init(*QUICK, "--data", "pocket-words", "--dir", "new/job", "--run", "night")
    assert code == 0 and said.endswith("start    python -m orchestrator run --profile ./new/job/night.toml\n")
    assert {path.name for path in Path("new/job").iterdir()} == {"night.toml", "rewards.py"}


def test_without_a_terminal_the_missing_flags_are_named(init: Init) -> None:
    code, _, said = init("--model", "pocket-words", "--card", "cpu")
    assert code == ExitCode.USAGE and "these flags are missing" in said and "--yes" in said
    assert "  --data    pocket-words\n  --reward  what suits the data\n" in said and "--model " not in said
    assert not any(Path().iterdir())


def test_no_file_is_overwritten_unless_one_says_so(init: Init) -> None:
    assert init(*QUICK, "--data", "pocket-words")[0] == 0
    Path("rewards.py").write_text("mine")
    code, _, said = init(*QUICK, "--data", "pocket-words")
    assert code == ExitCode.INPUT and "here.toml and rewards.py are there already" in said and "--force" in said
    assert Path("rewards.py").read_text() == "mine"
    assert init(*QUICK, "--data", "pocket-words", "--force")[0] == 0
    assert Path("rewards.py").read_text() != "mine"


def test_a_folder_that_is_not_empty_is_written_to_only_by_name(init: Init) -> None:
    Path("thesis.tex").write_text("mine")
    code, _, said = init(*QUICK, "--data", "pocket-words")
    assert code == ExitCode.INPUT and "is not empty: thesis.tex" in said and "--dir ." in said
    assert [path.name for path in Path().iterdir()] == ["thesis.tex"]
    assert init(*QUICK, "--data", "pocket-words", "--dir", ".")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--model", "Qwen/Nothing"), ExitCode.INPUT, "hf download Qwen/Nothing --local-dir models/Nothing"),
        (("--data", "hf:a/b"), ExitCode.INPUT, "hf download a/b --repo-type dataset --local-dir data/b   then: "),
        (("--data", "nowhere.jsonl"), ExitCode.INPUT, "there is no such file"),
        (
            ("--data", "numbers.jsonl"),
            ExitCode.INPUT,
            "has no column of text that could be a prompt; its columns:\n  n",
        ),
        (("--data", "rows.jsonl", "--prompt-column", "promt"), ExitCode.INPUT, "did you mean prompt?"),
        (("--data", "rows.jsonl", "--reward", "corect"), ExitCode.INPUT, "did you mean correct?"),
        (("--data", "rows.jsonl", "--card", "huge"), ExitCode.USAGE, "--card is 8gb, 12gb, 16gb, 24gb, cpu or auto"),
        (("--data", "rows.jsonl", "--dir", "rows.jsonl"), ExitCode.INPUT, "is a file, not a folder"),
        (("--data", "rows.jsonl", "--answer-column", "none", "--reward", "correct"), ExitCode.INPUT, "--reward own"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    words: tuple[str, ...], code: int, said: str, init: Init
) -> None:
    problems(Path("rows.jsonl"), count=3)
    Path("numbers.jsonl").write_text('{"n": 1}\n')
    found, _, errors = init(*words, "--yes", "--no-dry-run")
    assert found == code and said in errors and "kept:  everything; nothing was written\n" in errors, errors
    assert {path.name for path in Path().iterdir()} == {"rows.jsonl", "numbers.jsonl"}


def test_a_model_that_is_too_large_for_the_card_is_refused_with_the_plan(init: Init, tmp_path: Path) -> None:
    from profiles.shapes import ARCHITECTURES

    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "model.safetensors").touch()
    (tmp_path / "large" / "config.json").write_text(
        json.dumps({**ARCHITECTURES["qwen2.5-3b"], "num_hidden_layers": 200})
    )
    code, _, said = init("--model", str(tmp_path / "large"), "--data", "pocket-words", "--card", "8gb", "--yes")
    assert code == ExitCode.CUDA_OOM and "is too large for 8gb" in said and "phase     allocated" in said
    assert not any(Path().iterdir())


def test_every_command_of_the_documents_and_of_help_is_one_that_is_understood() -> None:
    texts = [(REPOSITORY / "docs/quickstart.md").read_text(), str(command.__doc__)]
    found = [
        line.partition("#")[0].partition("init")[2]
        for text in texts
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip().startswith("python -m orchestrator init")
    ]
    assert len(found) >= 6
    for words in found:
        args, _ = parse(["init", *shlex.split(words)])
        assert args.card in (None, "cpu", *CARDS)


# --- at a terminal ----------------------------------------------------------------------------------------------------


def at_terminal(data: Path, *words: str) -> Terminal:
    words = ("--data", str(data), "--no-dry-run", *words)
    return Terminal("-m", "orchestrator", "init", *words, columns=100, lines=40, input_is_terminal=True)


def test_questions_have_defaults_and_a_wrong_answer_is_asked_again(tmp_path: Path) -> None:
    terminal = at_terminal(problems(tmp_path / "mine.jsonl"))
    for question, answer in (
        ("Model: a directory, or pocket-words [pocket-words]", "models/nothing"),
        ("there is no model directory", "pocket-words"),
        ("Column that is asked [prompt]", ""),
        ("Column of right answers, or none [answer]", ""),
        ("Reward (correct, ", "own"),
        ("Card (8gb, 12gb, 16gb, 24gb, cpu)", "cpu"),
        ("Folder to write into [job]", str(tmp_path / "job")),
    ):
        terminal.until(lambda awaited=question: awaited in terminal.text)
        os.write(terminal.master, f"{answer}\n".encode())
    terminal.until(lambda: "start    python -m orchestrator run --profile" in terminal.text)
    assert terminal.process.wait() == 0
    terminal.close()
    table = tomllib.loads((tmp_path / "job" / "job.toml").read_text())
    assert table["grpo"]["rewards"] == [f"{tmp_path}/job/rewards.py:brief"]


def test_ctrl_c_at_a_question_leaves_nothing(tmp_path: Path) -> None:
    data = problems(tmp_path / "mine.jsonl")
    terminal = at_terminal(data, "--dir", str(tmp_path / "job"))
    terminal.until(lambda: "Model: " in terminal.text)
    os.write(terminal.master, b"pocket-words\n")
    terminal.until(lambda: "Column that is asked" in terminal.text)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait() == 130
    assert terminal.process.stderr is not None
    assert "kept:  everything; nothing was written" in terminal.process.stderr.read().decode()
    terminal.close()
    assert list(tmp_path.iterdir()) == [data]
