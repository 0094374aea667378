"""Renamed variables and dead statements make no new task where `azr.novelty` says so, and earn what a repeat earns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from profiles.task_kinds import NAMES
from tests.workers.azr.small import said, triplet
from tests.workers.azr.test_steps import ONE_TASK, Play, cell, rewards_of, right
from tests.workers.data.given import checker, merged
from workers.azr.buffers import Buffer, Buffers
from workers.data.data_set import read_data_set
from workers.sandbox import Limits, Sandbox
from workers.tasks.entry import Entry, make_entry
from workers.tasks.novelty import Novelty
from workers.tasks.prompts.style import Proposal
from workers.tasks.validate_proposals import Candidate, Rules, check

REFERENCE = "def f(a, b=2):\n    c = a[::-1]\n    return c * b"
RENAMED = "def f(text, times=2):\n    turned = text[::-1]\n    return turned * times"
DEAD = "def f(a, b=2):\n    n = len(a)\n    n += 1\n    c = a[::-1]\n    return c * b"
OTHER = "def f(a, b=2):\n    c = a[::-1]\n    return b * [c]"
COMMENT = REFERENCE + "  # mine"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


def entry(program: str = REFERENCE, input_: str = "'uv'", step: int = 1) -> Entry:
    return make_entry("ded", program, [input_], ["'vuvu'"], step=step, source="selfplay")


@pytest.mark.parametrize(
    ("program", "input_", "canonical", "tree", "text"),
    [
        pytest.param(REFERENCE, "'uv'", True, True, True, id="the same"),
        pytest.param(COMMENT, "'uv'", True, True, False, id="a comment"),
        pytest.param(RENAMED, "'uv'", True, False, False, id="other names"),
        pytest.param(RENAMED, "text='uv'", True, False, False, id="other names, and called by name"),
        pytest.param(REFERENCE, "'uv', 2", True, False, False, id="the default written out"),
        pytest.param(DEAD, "'uv'", True, False, False, id="dead statements"),
        pytest.param(REFERENCE, "'uw'", False, False, False, id="another input"),
        pytest.param(REFERENCE, "'uv', 3", False, False, False, id="another value than the default"),
        pytest.param(OTHER, "'uv'", False, False, False, id="another program"),
    ],
)
def test_what_counts_as_the_reference(
    program: str, input_: str, canonical: bool, tree: bool, text: bool, sandbox: Sandbox
) -> None:
    kinds: dict[Novelty, bool] = {"canonical": canonical, "tree": tree, "text": text}
    for novelty, is_known in kinds.items():
        buffer = Buffer(9, novelty)
        buffer.add(entry())
        candidate = Candidate("ded", Proposal(program, (input_,)))
        rules = Rules(novelty=novelty)
        (found,) = check([candidate], sandbox, {"ded": buffer.forms}, step=2, rules=rules)
        assert found.reason == ("repeat" if is_known else ""), novelty
        again = check([candidate, Candidate("ded", Proposal(REFERENCE, ("'uv'",)))], sandbox, {"ded": ()}, step=2,
                      rules=rules)  # fmt: skip
        assert [one.reason for one in again] == ["", "repeat" if is_known else ""], "within a batch too"


@pytest.mark.parametrize(("novelty", "reward", "stored"), [("canonical", -0.5, 0), ("tree", 0.75, 1)])
def test_a_reference_in_another_dress_earns_what_a_repeat_earns(
    novelty: str, reward: float, stored: int, tmp_path: Path, sandbox: Sandbox
) -> None:
    """The identity is in every buffer from the first step on."""
    dressed = said(triplet("def f(value):\n    unused = 0\n    return value", "'Hello world'"))
    answers = {"propose ded": lambda n: dressed, "solve ded": right(2, "'Hello world'")}
    play = Play(tmp_path, sandbox, answers, novelty=novelty, **ONE_TASK)
    collected = play.step()
    assert rewards_of(cell(collected, "propose", "ded")) == [reward]
    assert len(collected.found) == stored


def test_a_restored_buffer_knows_what_the_saved_one_knew_and_has_the_same_bytes(tmp_path: Path) -> None:
    for novelty in ("canonical", "tree", "text"):
        saved, restored = (Buffers(NAMES, 3, novelty) for _ in range(2))  # type: ignore[arg-type]
        for number in range(5):  # two of them leave again
            saved.of["ded"].add(entry(RENAMED if number % 2 else DEAD, f"'u{number}'", step=number))
        saved.save(tmp_path / "a.jsonl")
        restored.load(tmp_path / "a.jsonl")
        restored.save(tmp_path / "b.jsonl")
        assert restored.of["ded"].forms == saved.of["ded"].forms and len(saved.of["ded"].forms) == 3
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_checkpoint_of_before_is_read_and_judged_like_a_new_one(tmp_path: Path) -> None:
    row = msgspec.to_builtins(entry())
    del row["form"]
    (tmp_path / "old.jsonl").write_bytes(msgspec.json.encode(row) + b"\n")
    buffers = Buffers(NAMES, 3, "canonical")
    buffers.load(tmp_path / "old.jsonl")
    fresh = Buffer(3, "canonical")
    fresh.add(entry(RENAMED))
    assert buffers.of["ded"].forms == fresh.forms


def test_rows_of_such_a_buffer_are_tasks_of_a_data_set(tmp_path: Path) -> None:
    buffers = Buffers(NAMES, 3, "canonical")
    buffers.of["ded"].add(entry())
    buffers.save(tmp_path / "rows.jsonl")
    with checker() as check_:
        merged(tmp_path / "set.jsonl", check_, tmp_path / "rows.jsonl")
    (record,) = read_data_set(tmp_path / "set.jsonl").records
    assert (record.program, record.form) == (REFERENCE, "")
