"""evaluate: a real command, a real worker, killed where it hurts, beside a run that trains."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.cli import main
from orchestrator.commands import status
from orchestrator.evaluation.progress import Progress
from orchestrator.evaluation.render import how, scores
from orchestrator.evaluation.target import choose_checkpoint, hold, let_go
from orchestrator.report.page import write_report
from profiles.errors import ExitCode, LonghaulError
from profiles.load import profile_sha256, resolved_json
from profiles.schema import Profile, Run, Sampling, Validation
from state import checkpoint
from state.evaluations import EvaluationDir, EvaluationLock, read_evaluations
from state.history import CheckpointFacts
from state.layout import RunDir
from state.lock import RunLock
from state.store import NewAttempt, NewRun, Store
from tests import REPOSITORY
from tests.builders import build_store
from workers.line_contract import Answered, Loading, Note, SuiteBegun

WEIGHTS = REPOSITORY / "workers" / "pocket" / "weights"
PROFILE = Profile(
    name="night", run=Run(threads=1, device="cpu"), sampling=Sampling(max_completion_tokens=24),
    validation=Validation(examples_per_task=4),
)  # fmt: skip
KILLED = -signal.SIGKILL


def a_run(root: Path) -> RunDir:
    """A run whose head, of step 20, holds the built-in model."""
    run = RunDir(root)
    root.mkdir(parents=True)
    new = NewRun("r0", run.name, resolved_json(PROFILE).decode(), profile_sha256(PROFILE), 0, "0.1.0", 1000.0)
    store = Store.open(run, new)
    store.plan_cycle(1, "train", 1, 21, 0, 1000.0)
    store.plan_attempt(NewAttempt(1, "train", 1, "t1", 1, 0, 1000.0))

    def write(directory: Path) -> None:
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(WEIGHTS / name, directory / name)
        shutil.copyfile(WEIGHTS / "model.safetensors", directory / "model.safetensors")
        (directory / "optimizer.safetensors").write_bytes(b"not needed here")

    saved = checkpoint.stage(run, run_id="r0", parent=None, cycle=1, attempt=1, token="t1", step=20,
                             profile_sha256="p", versions={}, write=write)  # fmt: skip
    facts = CheckpointFacts(saved.checkpoint_id, None, 1, 20, saved.path, saved.digest, saved.manifest.bytes, True)
    store.commit_checkpoint(facts, 1, 1000.0)
    store.close()
    return run


def command(*words: str, cwd: Path, crash: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LONGHAUL_CRASHPOINT": crash, "LONGHAUL_DATA": ""}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "evaluate", *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def lines_of(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*/*.jsonl")) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_command_and_its_worker_may_be_killed_anywhere_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    words = ("--model", "pocket", "--examples", "6", "--batch-size", "6", "--json")
    whole = command(*words, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    killed = command(*words, "--out", "torn", cwd=tmp_path, crash="evaluate.answers_written:1")
    assert killed.returncode == ExitCode.INTERNAL
    assert "the evaluation worker was killed by signal 9" in killed.stderr
    assert len(lines_of(tmp_path / "torn")) == 6
    killed = command(*words, "--out", "torn", cwd=tmp_path, crash="evaluate.before_commit:5")
    assert killed.returncode == KILLED
    before = lines_of(tmp_path / "torn")
    assert len(before) >= 12, "the worker is ahead of the store"
    resumed = command(*words, "--out", "torn", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    after = lines_of(tmp_path / "torn")
    assert after[: len(before)] == before
    assert sorted(after) == sorted(lines_of(tmp_path / "whole")) and len(after) == 18
    facts, expected = json.loads(resumed.stdout)["suites"], json.loads(whole.stdout)["suites"]
    assert facts == expected
    assert facts[0]["n"] == facts[0]["answered"] == 18
    again = command(*words, "--out", "torn", cwd=tmp_path)
    assert "loading the model" not in again.stderr
    assert json.loads(again.stdout)["suites"] == expected


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_while_its_run_trains_and_prunes_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "night")
    lock = RunLock.acquire(run)  # a master trains
    store = hashlib.sha256(run.store.read_bytes()).hexdigest()
    try:
        words = ("--run", "night", "--checkpoint", "20", "--examples", "4", "--batch-size", "4", "--device", "cpu")
        killed = command(*words, cwd=tmp_path, crash="evaluate.answers_written:1")
        assert killed.returncode == ExitCode.INTERNAL, killed.stderr
        shutil.rmtree(next(run.checkpoints.iterdir()))
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    finally:
        lock.release()
    assert hashlib.sha256(run.store.read_bytes()).hexdigest() == store
    assert "4 of 12 were already answered" in done.stdout
    (facts,) = read_evaluations(EvaluationDir.of(run))
    assert (facts.target.step, facts.suite, facts.n, facts.answered) == (20, "pocket", 12, 12)
    assert not list(EvaluationDir.of(run).root.glob("*/model")), "the links are let go"
    gone = command(*words, "--examples", "3", cwd=tmp_path)
    assert gone.returncode == ExitCode.INPUT and "cannot be evaluated" in gone.stderr
    shown = status.render(status.collect(run, time.time()))
    assert f"evaluated   pocket {facts.score:.3f} [" in shown and "(step 20, greedy, 4 per task, 12 problems)" in shown
    html = write_report(run).read_text()
    assert "<h2>Evaluations</h2>" in html and "4 per task" in html


# --- without a worker ------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "runs" / "night")
    return tmp_path / "runs"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["evaluate", *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--examples", "0"], ExitCode.USAGE, "--examples 0: at least 1"),
        (["--samples", "0"], ExitCode.USAGE, "--samples 0: at least 1"),
        (["--samples", "4", "--temperature", "0"], ExitCode.USAGE, "are all the same"),
        (["--temperature", "3"], ExitCode.USAGE, "between 0 and 2"),
        (["--samples", "4", "--k", "1,8"], ExitCode.USAGE, "--k 1,8: numbers from 1 to 4"),
        (["--k", "a"], ExitCode.USAGE, "--k a"),
        (["--batch-size", "0"], ExitCode.USAGE, "--batch-size"),
        (["--max-new-tokens", "0"], ExitCode.USAGE, "--max-new-tokens"),
        (["--on", ","], ExitCode.USAGE, "no suite is named"),
        (["--shards", "0"], ExitCode.USAGE, "--shards 0: at least 1"),
        (["--at-once", "-1"], ExitCode.USAGE, "--at-once -1: at least 1"),
        (["--shards", "4"], ExitCode.USAGE, "launch.launcher is local"),
        (["--set", "model.path=other"], ExitCode.USAGE, "only knobs of [launch] and [retry]"),
        (["--set", "launch.nodes=4"], ExitCode.INPUT, "nodes"),
        (["--checkpoint", "21"], ExitCode.INPUT, "no checkpoint of step 21; it has checkpoints of steps 20"),
        (["--checkpoint", "best"], ExitCode.INPUT, "no validation yet"),
        (["--checkpoint", "elsewhere"], ExitCode.INPUT, "no checkpoint at"),
        (["--checkpoint", ""], ExitCode.INPUT, "no checkpoint with an empty name"),
        (["--run", "d" * 300], ExitCode.USAGE, "it has 300 bytes; a file name may have 255"),
        (["--model", "pocket", "--out", "/proc/x/y"], ExitCode.INPUT, "/proc/x/y cannot be used"),
        (["--model", "pocket", "--out", "/dev/null/x"], ExitCode.INPUT, "/dev/null/x cannot be used: Not a directory"),
        (["--run", "day"], ExitCode.INPUT, "there is no run 'day'"),
        (["--model", "elsewhere"], ExitCode.INPUT, "there is no model directory"),
        (["--model", "."], ExitCode.USAGE, "no suite is named"),
    ],
)
def test_what_cannot_be_evaluated_is_told_at_once(
    words: list[str], code: ExitCode, text: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = refused(capsys, *words)
    assert (found, text in said) == (code, True), said
    assert said.startswith("error: ") and "\nnext:  " in said


@pytest.mark.parametrize("command", ["evaluate", "generate", "export"])
@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("9" * 18, "has no checkpoint of step 9"),
        ("9223372036854775808", "has no checkpoint of step 9223372036854775808"),  # SQLite's largest number, and one
        ("9" * 5000, "has no checkpoint of step 9"),  # of more digits than int() reads
        ("²", "has no checkpoint at .*²: "),
        ("٢٠", "has no checkpoint at .*٢٠: "),
        ("-20", "has no checkpoint at .*-20: "),
    ],
)
def test_a_step_is_digits_and_one_that_is_not_there_is_told_with_those_that_are(
    command: str, wanted: str, why: str, runs: Path
) -> None:
    with pytest.raises(LonghaulError, match=f"run 'night' {why}.*it has checkpoints of steps 20") as told:
        choose_checkpoint(RunDir(runs / "night"), wanted, command)
    assert told.value.exit_code == ExitCode.INPUT
    assert told.value.next_command == f"python -m orchestrator {command} --run night --checkpoint head"


@pytest.mark.parametrize("wanted", ["20", "0020", "0" * 5000 + "20"])
def test_a_step_may_have_zeros_in_front(wanted: str, runs: Path) -> None:
    assert choose_checkpoint(RunDir(runs / "night"), wanted).target.step == 20


@pytest.mark.parametrize("command", ["generate", "export"])
def test_a_checkpoint_that_was_pruned_is_told_with_those_that_are_there(command: str, tmp_path: Path) -> None:
    run = build_store(tmp_path / "night")  # rows, and no files
    with pytest.raises(LonghaulError, match=r"no longer has the files of step 60 \(pruned\)") as told:
        choose_checkpoint(run, "60", command)
    assert told.value.next_command == f"python -m orchestrator {command} --run night --checkpoint head"


def test_links_that_were_only_partly_removed_are_not_taken_for_a_checkpoint(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = choose_checkpoint(RunDir(runs / "night"), "head")
    held = chosen.where.model("one")
    held.parent.mkdir(parents=True)
    assert hold(chosen.directory, chosen.target.identity, held) == held
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", half_removed)
        let_go(held)
    assert hold(chosen.directory, chosen.target.identity, held) == held
    let_go(held)
    let_go(held)
    assert not any(held.parent.iterdir())


def half_removed(path: Path, **_options: object) -> None:
    (path / checkpoint.MANIFEST).unlink()
    raise KeyboardInterrupt


def test_a_damaged_checkpoint_is_not_evaluated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (weights,) = runs.glob("night/checkpoints/*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    found, said = refused(capsys)
    assert found == ExitCode.INPUT and "model.safetensors was changed" in said


def test_a_checkpoint_of_another_run_is_not_evaluated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = next((runs / "night" / "checkpoints").iterdir()), runs / "night" / "foreign"
    shutil.copytree(source, target)
    manifest = checkpoint.read_manifest(target)
    (target / checkpoint.MANIFEST).write_bytes(checkpoint.encode_manifest(replace(manifest, run_id="r9")))
    found, said = refused(capsys, "--checkpoint", str(target))
    assert found == ExitCode.INPUT and "run r9 did" in said


def test_a_second_evaluation_waits_for_its_turn(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.commands.evaluate.LOCK_PATIENCE_S", 0.0)
    lock = EvaluationLock.acquire(EvaluationDir.of(RunDir(runs / "night")))
    assert lock is not None
    found, said = refused(capsys)
    lock.release()
    assert found == ExitCode.LOCKED and f"pid {os.getpid()}" in said


def test_an_unknown_suite_is_told_by_the_worker_with_the_nearest_name(tmp_path: Path) -> None:
    done = command("--model", "pocket", "--on", "poket", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "there is no suite 'poket'; did you mean pocket?" in done.stderr


# --- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0, "samples": 1, "style": "run"}, "greedy"),
        ({"temperature": 1.0, "samples": 8}, "8 samples at temperature 1"),
        ({"temperature": 0.7, "samples": 1, "examples": 200}, "1 sample at temperature 0.7, 200 per task"),
        ({"temperature": 0, "style": "plain"}, "greedy, style plain"),
    ],
)
def test_how_it_was_asked_in_words(settings: dict[str, Any], expected: str) -> None:
    assert how(settings) == expected


def test_scores_in_words() -> None:
    greedy = {"mean": {"accuracy": 0.4121, "low": 0.381, "high": 0.449}}
    assert scores(greedy, "mean") == "0.412 [0.38, 0.45]"
    sampled = {"ded": {"pass_at_1": 0.3, "low": 0.25, "high": 0.35, "pass_at_16": 0.71, "pass_at_4": 0.5}}
    assert scores(sampled, "ded") == "pass@1 0.300 [0.25, 0.35], pass@4 0.500, pass@16 0.710"
    assert scores(greedy, "ded") == ""


class Screen:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def answers(done: int, right: int, n: int) -> Answered:
    return Answered("cruxeval-o", done, [(f"q{done}-{i}", "ded", 1, int(i < right)) for i in range(n)])


def heard(*, on_terminal: bool) -> str:
    screen = Screen()
    progress = Progress(screen, on_terminal=on_terminal)  # type: ignore[arg-type]
    progress.hear(SuiteBegun("cruxeval-o", "f", 8))
    progress.hear(answers(2, 1, 2))
    progress.hear(Loading())
    progress.hear(Note("careful\x1b[2J"))
    progress.hear(answers(4, 2, 2))
    progress.hear(answers(8, 1, 4))
    assert (progress.answered, progress.total) == (8, 8)
    return screen.text


def test_without_a_terminal_progress_is_plain_lines_now_and_then() -> None:
    lines = heard(on_terminal=False).splitlines()
    assert lines == [
        "cruxeval-o: 2 of 8, 50 % right so far",
        "2 of 8 were already answered",
        "loading the model",
        "note: careful␛[2J",
        "cruxeval-o: 8 of 8, 50 % right so far",
    ]


def test_on_a_terminal_one_line_changes() -> None:
    text = heard(on_terminal=True)
    assert text.count("\r\x1b[K") == 3 and "\x1b[2J" not in text
