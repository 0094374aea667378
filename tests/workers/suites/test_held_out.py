"""Isolation: no program of a suite whose data is at hand can enter a buffer, whatever it is dressed in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile, Validation
from tests.workers.suites.samples import CRUXEVAL_ROWS, PROGRAMS, write_data
from workers.azr.prompts.style import Proposal
from workers.azr.seeds import seed_entries
from workers.azr.tasks import TASKS
from workers.azr.validate_proposals import Candidate, Rules, check
from workers.data.tasks import read_tasks
from workers.pocket.evaluation import held_out_problems
from workers.sandbox import Sandbox
from workers.suites.data_files import VARIABLE
from workers.suites.held_out import HeldOutPrograms, held_out_of

OWN = "def f(a):\n    return a * 3"


def registry(data: Path | None, *suites: str, style: str = "azr") -> HeldOutPrograms:
    validation = Validation(suites=suites or ("pocket",), data=str(data or ""), examples_per_task=3)  # type: ignore[arg-type]
    return held_out_of(Profile(name="t", model=Model(prompt_style=style), validation=validation))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1) as one:
        yield one


@pytest.mark.parametrize("style", ["azr", "pocket"])
def test_every_program_of_every_suite_at_hand_is_held_out(style: str, tmp_path: Path) -> None:
    """Also of suites that the profile does not name: they may be evaluated later."""
    is_held_out = registry(write_data(tmp_path), style=style)
    assert all(is_held_out(program) for program in PROGRAMS)
    assert all(is_held_out(problem.item.program) for problem in held_out_problems(300)[::60])
    assert style == "pocket" or not is_held_out(OWN)


@pytest.mark.parametrize(
    "dressed",
    [
        pytest.param("def f(a):\n\n    return (a*2)  # mine", id="comments, spaces, brackets"),
        pytest.param('def f(a):\n    """Doubles."""\n    return a * 2', id="a docstring"),
        pytest.param("def f(a: int) -> int:\n    return a * 2", id="annotations"),
    ],
)
def test_dress_hides_nothing(dressed: str, tmp_path: Path) -> None:
    assert registry(write_data(tmp_path))(dressed)


def test_a_proposal_of_a_held_out_program_never_becomes_a_task(tmp_path: Path, sandbox: Sandbox) -> None:
    is_held_out = registry(write_data(tmp_path))
    proposals = [*((code, given) for code, given, _ in CRUXEVAL_ROWS[:3]), (OWN, "3")]
    candidates = [Candidate("ded", Proposal(code, (given,))) for code, given in proposals]
    known = {task: frozenset[str]() for task in TASKS}
    found = check(candidates, sandbox, known, step=1, rules=Rules(is_held_out=is_held_out))
    assert [one.reason for one in found] == ["held_out"] * 3 + [""]
    assert [one.entry is None for one in found] == [True] * 3 + [False]


def test_a_file_of_tasks_with_a_held_out_program_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    lines = [{"task": "ded", "program": program, "inputs": ["3"]} for program in (OWN, PROGRAMS[0])]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(LonghaulError, match="line 2: the program belongs to a held-out suite") as caught:
        read_tasks(tmp_path / "tasks.jsonl", sandbox, TASKS, registry(write_data(tmp_path)))
    assert caught.value.exit_code == ExitCode.INPUT


def test_the_seeds_are_not_held_out(tmp_path: Path) -> None:
    is_held_out = registry(write_data(tmp_path))
    assert not any(is_held_out(entry.program) for entry in seed_entries(TASKS, "azr"))


def test_a_run_whose_suite_has_no_data_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="is missing") as caught:
        registry(tmp_path, "cruxeval-i")
    assert caught.value.exit_code == ExitCode.INPUT
    registry(tmp_path, "pocket")
