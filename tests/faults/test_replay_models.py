"""Power fails while a real model is trained, evaluated or exported; then the same command is typed again."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from state.checkpoint import verify
from tests.faults import harness
from tests.faults.harness import Scene, faults, scene
from tests.faults.test_pocket import command as train
from tests.faults.test_replay import Recording, record, resumed_from
from tests.orchestrator.test_evaluate import a_run

FEW, MORE = {"training": 1, "evaluate": 1, "export": 1}, 60
"""Cuts of each command: in the tests of a submission, and in all tests."""


def nothing(run: Scene) -> None:
    run.root.mkdir()


def a_head(run: Scene) -> None:
    a_run(run.run.root)


def asking(*words: str) -> Callable[[Scene], list[str]]:
    def command(run: Scene) -> list[str]:
        named = [word.format(root=run.root) for word in words]
        return [sys.executable, "-m", "orchestrator", *named, "--run", run.name, "--runs", str(run.root / "runs")]

    return command


# --- what each command makes, without times and tokens ---------------------------------------------------------------


def digest_and_scores(run: Scene) -> str:
    """Of the trained run: bytes of the head, every step, and all scores."""
    return repr([
        run.rows("SELECT step, digest FROM checkpoints JOIN runs ON head=checkpoint_id"),
        run.rows("SELECT step, cycle, loss, reward, tokens FROM trained_steps ORDER BY step"),
        run.rows("SELECT suite, step, accuracy FROM validations ORDER BY step, suite"),
    ])  # fmt: skip


def answers(run: Scene) -> str:
    """Of the evaluation: what was answered, and the score."""
    said = [
        (line["outcome"]["question_id"], line["completions"])
        for path in run.run.root.glob("evaluations/*/*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
    ]
    with closing(sqlite3.connect(next(run.run.root.glob("evaluations/*.db")))) as db:
        scores = db.execute("SELECT suite, score FROM suites ORDER BY suite").fetchall()
    assert len(said) == len({question for question, _ in said}), "a question was answered twice"
    return repr([sorted(said), scores])


def exported(run: Scene) -> str:
    """Of the export: every byte of the model."""
    names = sorted(path.name for path in run.root.glob("model/*"))
    assert not list(run.root.glob(".model.half-*")), "a half-made model is left"
    return repr([(name, hashlib.sha256((run.root / "model" / name).read_bytes()).hexdigest()) for name in names])


@dataclass(frozen=True)
class Story:
    """taken: code of the command where it was complete before the cut, and has nothing left to do."""

    prepare: Callable[[Scene], None]
    command: Callable[[Scene], list[str]]
    made: Callable[[Scene], str]
    taken: int = 0


STORIES = {
    "training": Story(nothing, train, digest_and_scores),
    "evaluate": Story(
        a_head, asking("evaluate", "--on", "pocket", "--examples", "2", "--max-new-tokens", "8"), answers
    ),
    "export": Story(a_head, asking("export", "--merged", "--out", "{root}/model"), exported, taken=66),
}


def files_in(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without the outputs of commands, and the empty logs that looking at a store leaves."""
    return {path: content for path, content in found.items() if "/" in path and (content or "-wal" not in path)}


def check_story(name: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the command, and cut it at a place that the number of the part draws."""
    monkeypatch.setattr(harness, "PATIENCE_S", 560.0)
    story, root, expected = STORIES[name], tmp_path / "run", ""

    def look(run: Scene) -> None:
        nonlocal expected
        expected = story.made(run)

    with scene(root) as run:
        story.prepare(run)
        shutil.copytree(root, tmp_path / "there")
        found = record(run, tmp_path / "trace", tmp_path / "there", story.command(run), look)
    ends = found.at(len(found.calls))[0].now()
    assert files_in(ends) == files_in(found.left), "the model of the disk"
    if story.taken:  # what it reported is there if power fails right after
        shutil.rmtree(root, ignore_errors=True)
        found.at(len(found.calls))[0].after_cut(root, None)
        assert story.made(Scene(root)) == expected
    draw = Random(f"{name} {part}")
    check_cut(story, found, draw.randrange(1, len(found.calls)), draw, expected)


def check_cut(story: Story, found: Recording, count: int, draw: Random, expected: str) -> None:
    disk, reported = found.at(count)
    shutil.rmtree(found.root, ignore_errors=True)
    with scene(found.root) as run:
        disk.after_cut(found.root, draw if draw.random() < 0.7 else None)
        where = f"after call {count} of {len(found.calls)}: {found.calls[count - 1].name}"
        faults.append(where)
        again = run.launch(story.command(run))
        code, text = again.end(), f"{where}\n{again.text()}"
        assert "Traceback" not in again.text() and code in (0, story.taken), text
        assert reported <= 0 or resumed_from(again.text()) >= reported, text
        assert story.made(run) == expected, text
        verify(run.head_dir(), deep=True)


CUTS = [
    pytest.param(name, part, marks=pytest.mark.exhaustive if part >= FEW[name] else ())
    for name in STORIES
    for part in range(MORE)
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "part"), CUTS)
def test_power_fails_in(name: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_story(name, part, tmp_path, monkeypatch)
