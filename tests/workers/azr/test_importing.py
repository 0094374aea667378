"""A run that begins with imported tasks: a real worker, its own rules, killed half-way and resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode
from profiles.rules import check
from profiles.schema import Azr, Data, Profile, Run
from tests.workers import harness as h
from tests.workers.data.given import ADD, line, write
from workers.azr.trainer import AzrTrainer
from workers.contract import Outcome, WorkerSpec
from workers.control import Control
from workers.cycle.train import train
from workers.pocket import language
from workers.runtime import carry_out
from workers.sandbox import Sandbox

HALVES = "def f(a):\n    b = a[::2]\n    return b"
TURNED = "def f(a):\n    b = a[1:] + a[:1]\n    return b"


def held_out_program() -> str:
    """One of the fold that the pocket model was never pretrained on."""
    bodies = (f"b = a + '{x}{y}'" for x in language.LETTERS for y in language.LETTERS)
    return next(p for body in bodies if language.is_held_out(p := f"def f(a):\n    {body}\n    return b"))


LINES = {
    line(HALVES, "'uvwxy'"): "",
    line("# another's words\n" + HALVES, "'UVW'"): "unreadable",
    line(HALVES, "'hello'"): "unreadable",
    line(HALVES, "'" + "uv" * 60 + "'"): "output_rule",
    line(ADD): "output_rule",
    line(held_out_program(), "'uv'"): "held_out",
    line(HALVES, "'VWX'", task="abd", outputs=["'VX'"]): "",
    line(HALVES, "'VWX'", task="abd"): "duplicate",
    line(TURNED, "'VWX'", outputs=["'X'"]): "other_output",
    json.dumps({"task": "ind", "program": HALVES, "inputs": ["'uv'", "'uw'", "'ux'", "'uy'"]}): "other_kind",
}
"""Each with why a run in the pocket style, without induction, does not take it."""


def seeding(root: Path, source: Path, attempt: int = 1, **azr: Any) -> WorkerSpec:
    root.mkdir(exist_ok=True)
    knobs = {"tasks": ("abd", "ded"), "proposals_per_task": 4, "group_size": 2, **azr}
    profile = h.tiny_profile(azr=Azr(**knobs), data=Data(sources=(str(source),)))
    return h.make_spec(root, profile, head=None, end_step=1, cycle=0, attempt=attempt)


def begun(spec: WorkerSpec, sandbox: Sandbox) -> WorkerSpec:
    """The attempt in this process, which saves the start of one."""
    carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
    assert h.result_of(spec).outcome is Outcome.DONE, h.result_of(spec).error
    return spec


def buffers(root: Path) -> list[dict[str, Any]]:
    head = root / h.newest_checkpoint(root).path
    return [json.loads(row) for row in (head / "buffers.jsonl").read_text().splitlines()]


def test_a_run_begins_with_what_its_own_rules_allow_of_its_sources(tmp_path: Path, sandbox: Sandbox) -> None:
    spec = begun(seeding(tmp_path / "run", write(tmp_path / "in.jsonl", *LINES)), sandbox)
    (event,) = h.events_of(spec, "import")
    refused = [reason for reason in LINES.values() if reason not in ("", "duplicate")]
    assert event.data["invalid"] == {reason: refused.count(reason) for reason in event.data["invalid"]}
    assert sum(event.data["invalid"].values()) == len(refused)
    assert (event.data["added"], event.data["duplicate"]) == (2, 1)
    assert event.data["text"].startswith("2 tasks from ")
    taken = [row for row in buffers(tmp_path / "run") if row["source"] == "import"]
    assert [(row["task"], row["program"], row["inputs"], row["outputs"], row["step"]) for row in taken] == [
        ("abd", HALVES, ["'VWX'"], ["'VX'"], 0),
        ("ded", HALVES, ["'uvwxy'"], ["'uwy'"], 0),
    ]
    (found,) = h.events_of(spec, "examples")
    assert {one["program"] for one in found.data["tasks"]} == {"def f(a):\n    return a"}, "this run did not find them"


@pytest.mark.parametrize(
    ("crash", "is_written"),
    [pytest.param("durable.before_rename:1", False, marks=pytest.mark.exhaustive), ("durable.after_rename:1", True)],
)
def test_a_run_that_is_killed_while_it_imports_begins_as_one_that_was_not(
    crash: str, is_written: bool, tmp_path: Path, sandbox: Sandbox
) -> None:
    source, root = write(tmp_path / "in.jsonl", *LINES), tmp_path / "killed"
    begun(seeding(tmp_path / "whole", source), sandbox)
    killed = seeding(root, source)
    assert h.run(killed, warm="azr", LONGHAUL_CRASHPOINT=crash) == -signal.SIGKILL
    assert (root / "data" / "imported.jsonl").exists() == is_written
    if is_written:  # decided once: what has become of the source since does not matter
        write(source, line(TURNED, "'uvw'"))
    resumed = begun(seeding(root, source, attempt=2), sandbox)
    assert buffers(root) == buffers(tmp_path / "whole")
    assert len(h.events_of(resumed, "import")) == (0 if is_written else 1)


def test_enough_imported_tasks_need_no_seeding(tmp_path: Path, sandbox: Sandbox) -> None:
    words = [f"'{x}{y}{x}'" for x in language.LETTERS[:4] for y in language.LETTERS[:4]]
    source = write(tmp_path / "in.jsonl", *[line(HALVES, word, task=task) for word in words for task in ("abd", "ded")])
    begun(seeding(tmp_path / "run", source, seed_tasks=16, max_seed_batches=1), sandbox)
    assert len(buffers(tmp_path / "run")) == 2 * 17, "and the identity"
    assert not list((tmp_path / "run" / "cycles" / "0000" / "rollouts").glob("seed-*"))


def test_a_source_that_is_not_there_ends_the_run_with_advice(tmp_path: Path, sandbox: Sandbox) -> None:
    spec = seeding(tmp_path / "run", tmp_path / "nowhere.jsonl")
    carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
    result = h.result_of(spec)
    assert (result.outcome, result.exit_code) == (
        Outcome.FAILED,
        ExitCode.INPUT,
    ) and "nowhere.jsonl is not there" in result.error
    assert "data.sources=" in result.advice


@pytest.mark.parametrize(
    "profile",
    [
        Profile(name="p", data=Data(sources=("previous",), tasks="tasks.jsonl")),
        Profile(name="p", data=Data(sources=("previous",)), run=Run(worker="fake")),
    ],
)
def test_sources_that_nobody_would_read_are_refused(profile: Profile) -> None:
    assert "data.sources" in {knob for problem in check(profile) for knob in problem.knobs}
