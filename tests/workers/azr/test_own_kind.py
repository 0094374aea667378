"""A user's own kind of task: one file and a profile that names it are enough for a run to train on it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Azr, Profile
from state.layout import RunDir
from tests import REPOSITORY
from tests.workers import harness as h
from tests.workers.azr.last_letter import LAST_LETTER
from workers.azr.trainer import AzrTrainer
from workers.contract import Outcome
from workers.control import Control
from workers.cycle.train import train
from workers.data import sources
from workers.runtime import carry_out
from workers.sandbox import Limits, Sandbox
from workers.tasks.entry import Entry, make_entry
from workers.tasks.judge import Answer, Correctness, Judge
from workers.tasks.kinds import registry
from workers.tasks.prompts.azr import AzrStyle

OWN = "tests.workers.azr.last_letter:LAST_LETTER"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    registry._KINDS.pop(LAST_LETTER.name, None)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box


def profile() -> Profile:
    """As JSON has it, so that every rule of the schema has been applied."""
    wanted = h.tiny_profile(azr=Azr(tasks=("ded", OWN), proposals_per_task=4, group_size=4))
    return msgspec.json.decode(msgspec.json.encode(wanted), type=Profile)


def trained(root: Path, sandbox: Sandbox) -> list[dict[str, float]]:
    """The metrics of two steps after seeding."""
    for cycle, end in ((0, 1), (1, 3)):
        head = h.newest_checkpoint(root) if cycle else None
        spec = h.make_spec(root, profile(), head=head, end_step=end, cycle=cycle)
        carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
        assert h.result_of(spec).outcome is Outcome.DONE, h.result_of(spec).error
    return [event.data for event in h.events_at(RunDir(root).attempt(1, 1, "train").path, "step")]


def test_a_kind_of_one_file_is_proposed_judged_stored_and_trained_on(tmp_path: Path, sandbox: Sandbox) -> None:
    steps = trained(tmp_path, sandbox)
    last = tmp_path / h.newest_checkpoint(tmp_path).path
    entries = [msgspec.json.decode(line, type=Entry) for line in (last / "buffers.jsonl").read_bytes().splitlines()]
    own = [entry for entry in entries if entry.task == "end"]
    assert [entry.source for entry in own][:1] == ["seed"] and own[-1].source == "selfplay"
    for step in steps:
        assert 0 < step["new_examples/end"] <= 4
        assert step["reward_min/solve_end"] < step["reward_max/solve_end"]  # some answers were right, and some not
        assert step["advantage_std/solve_end"] == pytest.approx(1.0)  # so they moved the weights
        assert not step["update_skipped"]
    assert steps[-1]["buffer/end"] == len(own)
    first = tmp_path / h.first_checkpoint(tmp_path).path
    assert (first / "model.safetensors").read_bytes() != (last / "model.safetensors").read_bytes()


def test_its_own_rule_says_who_is_right(sandbox: Sandbox) -> None:
    registry.tasks_of([OWN])
    entry = make_entry("end", "def f(a):\n    return a[::-1]", ["'uvw'"], ["'wvu'"], step=1, source="selfplay")
    verdicts, _ = Judge(sandbox, None).judge([Answer(entry, "'u'"), Answer(entry, "'wvu'"), Answer(entry, None)])
    assert verdicts == [Correctness.CORRECT, Correctness.WRONG, Correctness.WRONG]


def test_it_touches_one_file() -> None:
    """Its words are in it; what it imports is there for all kinds, and none of that names it."""
    path = REPOSITORY / "tests/workers/azr/last_letter.py"
    imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported if name} == {"workers", "__future__"}
    folders = ("profiles", "state", "workers", "orchestrator")
    code = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    assert [path for path in code if "last_letter" in path.read_text(encoding="utf-8").lower()] == []


def test_a_style_without_words_for_it_is_refused_before_anything_is_asked() -> None:
    registry.tasks_of([OWN])
    with pytest.raises(LonghaulError, match="azr has no words for the kind of task 'end'") as caught:
        AzrStyle().propose("end", [])
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no_such_module:KIND", "No module named 'no_such_module'"),
        ("tests.workers.azr.last_letter:OTHER", "no attribute 'OTHER'"),
        ("tests.workers.azr.last_letter:LastLetter", "not an instance of"),
    ],
)
def test_a_module_without_the_kind_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(LonghaulError, match=why) as caught:
        registry.tasks_of([text])
    assert caught.value.exit_code == ExitCode.INPUT


def test_two_kinds_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(LAST_LETTER), "name", "ded")
    with pytest.raises(LonghaulError, match="a kind named 'ded' already"):
        registry.tasks_of([OWN])


def test_what_only_one_run_knows_is_left_out_of_data_sets(tmp_path: Path, sandbox: Sandbox) -> None:
    """As another process reads the run: it has not loaded the kind."""
    trained(tmp_path, sandbox)
    registry._KINDS.pop(LAST_LETTER.name)
    notes: list[str] = []
    head = tmp_path / h.newest_checkpoint(tmp_path).path
    found = list(sources._buffers(head, notes.append))
    assert found and {record.task for record in found} == {"ded"}
    assert len(notes) == 1 and "of the kind 'end', which only its run knows" in notes[0]
