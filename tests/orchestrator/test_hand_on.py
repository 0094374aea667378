"""After the last cycle, a real worker writes the input of a next run, whole or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.data_sets.hand_on import hand_on, is_due
from profiles.schema import Data, Profile, Run
from state.history import History
from state.layout import RunDir
from state.reader import Reader
from state.states import RunState
from tests.workers.data.given import ADD, TWICE, a_run, entry
from workers.data.data_set import read_data_set
from workers.data.initial import result_of

PROFILE = Profile(name="night")


def history_of(run: RunDir) -> History:
    reader = Reader.open(run)
    try:
        return reader.history()
    finally:
        reader.close()


def handed_on(run: RunDir, *, stop: bool = False) -> tuple[str, list[str]]:
    """The line for the summary, and what was said."""
    said: list[str] = []
    return hand_on(run, history_of(run), PROFILE, said.append, lambda: stop), said


@pytest.mark.parametrize(
    ("state", "profile", "expected"),
    [
        (RunState.FINISHED, PROFILE, True),
        (RunState.STAGNANT, PROFILE, True),
        (RunState.STOPPED, PROFILE, False),
        (RunState.FAILED, PROFILE, False),
        (RunState.FINISHED, replace(PROFILE, data=Data(hand_on=False)), False),
        (RunState.FINISHED, replace(PROFILE, run=Run(worker="fake")), False),
    ],
)
def test_when_tasks_are_handed_on(state: RunState, profile: Profile, expected: bool, tmp_path: Path) -> None:
    history = dataclasses.replace(history_of(a_run(tmp_path / "night")), state=state)
    assert is_due(history, profile) == expected
    assert not is_due(dataclasses.replace(history, head=None), profile), "nothing was found"


def test_every_task_of_the_run_is_handed_on_once(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night", entry(), found=(entry(), entry(TWICE, "4", "8", step=3)))
    line, said = handed_on(run)
    assert line == f"{run.next_input}: 2 tasks for a next run"
    assert [record.program for record in read_data_set(run.next_input).records] == [ADD, TWICE]
    assert result_of(run) == run.next_input, "and a next run takes it"
    before = (run.next_input.read_bytes(), run.next_input.stat().st_mtime_ns)
    again, said = handed_on(run)
    assert (again, len(said)) == (line, 1)
    assert (run.next_input.read_bytes(), run.next_input.stat().st_mtime_ns) == before, "once for each head"


def test_a_kill_leaves_none_and_the_next_start_of_the_run_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "night", entry())
    monkeypatch.setenv("LONGHAUL_CRASHPOINT", "durable.before_rename:1")
    line, said = handed_on(run)
    assert line == ""
    assert said[-1].startswith("data/next.jsonl could not be written: the data worker was killed by signal 9")
    assert not run.next_input.exists()
    monkeypatch.delenv("LONGHAUL_CRASHPOINT")
    line, _ = handed_on(run)
    assert "1 tasks for a next run" in line


def test_a_person_who_asks_to_stop_gets_the_terminal_back(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night", entry())
    assert handed_on(run, stop=True)[1][-1] == "data/next.jsonl was skipped, as requested"
    read_data_set(run.next_input)  # one task is quick: whatever is there is whole


def test_a_run_without_tasks_has_nothing_to_hand_on(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night")
    assert handed_on(run)[0] == ""
    assert not run.next_input.exists()
