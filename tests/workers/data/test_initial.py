"""A run's initial tasks: which sources are meant, and that this is decided once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Azr, Data, Profile
from state.layout import RunDir
from state.reader import Reader
from tests.profiles.variants import with_variants
from tests.workers.data.given import ADD, LOOP, TWICE, a_run, checker, entry, line, merged, write
from workers.data.checking import Checker
from workers.data.initial import Initial, initial_tasks, inputs_sha256, previous_run, result_of


@pytest.fixture(scope="module")
def check() -> Iterator[Checker]:
    with checker() as made:
        yield made


def profile(*sources: str, name: str = "night") -> Profile:
    return Profile(name=name, data=Data(sources=sources))


def begin(run: RunDir, check: Checker, *sources: str) -> tuple[Initial, list[str]]:
    """What it begins with, and what was noted."""
    run.root.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    return initial_tasks(run, profile(*sources), check, notes.append), notes


def programs(found: Initial) -> list[str]:
    return [record.program for record in found.data.records]


def born(root: Path, at: float, *, head: bool = True, name: str = "night") -> RunDir:
    """A run that began at `at` with the profile `name`."""
    run = a_run(root, entry(), steps=(0, 5) if head else ())
    with sqlite3.connect(run.store) as db:
        db.execute("UPDATE runs SET created_at = ?, profile = json_set(profile, '$.name', ?)", [at, name])
    db.close()
    return run


def test_a_source_is_a_file_a_run_s_folder_or_the_name_of_a_run_beside_this_one(tmp_path: Path, check: Checker) -> None:
    a_run(tmp_path / "runs" / "early", entry(TWICE, "2", "4"))
    a_run(tmp_path / "elsewhere" / "theirs", entry(TWICE, "3", "6"))
    file = write(tmp_path / "in.jsonl", line())
    run = RunDir(tmp_path / "runs" / "now")
    found, notes = begin(run, check, str(file), "early", str(tmp_path / "elsewhere" / "theirs"))
    assert [(one.program, one.inputs) for one in found.data.records] == [
        (ADD, ("1",)),
        (TWICE, ("2",)),
        (TWICE, ("3",)),
    ]
    assert found.report is not None and found.report.total("added") == 3
    assert found.data.path == run.imported and notes == []


def test_previous_is_the_newest_earlier_run_of_this_profile_that_has_a_head(tmp_path: Path) -> None:
    now = born(tmp_path / "now", 50.0)
    assert previous_run(now, "night") is None
    born(tmp_path / "z-first", 10.0)
    second = born(tmp_path / "second", 20.0)
    born(tmp_path / "other-profile", 30.0, name="day")
    born(tmp_path / "without-head", 40.0, head=False)
    born(tmp_path / "later", 60.0)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state.db").write_bytes(b"no store" * 100)
    assert previous_run(now, "night") == second


def test_without_a_previous_run_a_run_begins_from_the_identity_and_says_so(tmp_path: Path, check: Checker) -> None:
    run = born(tmp_path / "now", 50.0)
    found, notes = begin(run, check, "previous")
    assert (found.data.records, found.report) == ((), None)
    assert notes == ["there is no earlier run of profile night to continue from: this run starts from the identity"]


def test_what_a_run_left_is_read_if_it_is_of_its_head_else_the_run_itself(tmp_path: Path, check: Checker) -> None:
    run = a_run(tmp_path / "night", entry())
    assert result_of(run) == run.root
    merged(run.next_input, check, run.root, rebuild=True, inputs="an earlier head")
    assert result_of(run) == run.root
    reader = Reader.open(run)
    head = reader.history().head
    reader.close()
    assert head is not None
    merged(run.next_input, check, run.root, rebuild=True, inputs=head.checkpoint_id)
    assert result_of(run) == run.next_input


def test_the_sources_are_read_once_however_often_the_run_is_resumed(tmp_path: Path, check: Checker) -> None:
    run, file = RunDir(tmp_path / "now"), write(tmp_path / "in.jsonl", line())
    first, _ = begin(run, check, str(file))
    file.unlink()
    again, notes = begin(run, check, str(file))
    assert (again.data.records, again.report, notes) == (first.data.records, None, [])
    assert programs(again) == [ADD]


def test_a_set_that_was_damaged_since_is_made_anew(tmp_path: Path, check: Checker) -> None:
    run, file = RunDir(tmp_path / "now"), write(tmp_path / "in.jsonl", line())
    begin(run, check, str(file))
    run.imported.write_bytes(run.imported.read_bytes()[:-5])
    found, _ = begin(run, check, str(file))
    assert programs(found) == [ADD] and found.report is not None


def test_other_sources_or_rules_make_another_set(tmp_path: Path, check: Checker) -> None:
    run = RunDir(tmp_path / "now")
    one, two = write(tmp_path / "a", line()), write(tmp_path / "b", line(TWICE))
    begin(run, check, str(one))
    assert programs(begin(run, check, str(two))[0]) == [TWICE]
    changed = Profile(name="night", data=Data(sources=("a",)), azr=with_variants(Azr, allow_none_output=True))
    assert len({inputs_sha256(profile("a")), inputs_sha256(profile("b")), inputs_sha256(changed)}) == 3
    assert inputs_sha256(profile("a")) == inputs_sha256(profile("a", name="other"))


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (None, "in.jsonl is not there"),
        ([], "no valid task"),
        (["nonsense", line(LOOP)], "not taken: not_json 1, run 1"),
    ],
)
def test_sources_that_give_nothing_end_the_run_before_anything_is_written(
    lines: list[str] | None, why: str, tmp_path: Path, check: Checker
) -> None:
    run, file = RunDir(tmp_path / "now"), tmp_path / "in.jsonl"
    if lines is not None:
        write(file, *lines)
    with pytest.raises(LonghaulError, match=why) as refused:
        begin(run, check, str(file))
    assert refused.value.exit_code == ExitCode.INPUT
    assert refused.value.what.startswith("data.sources: ") and "--accept-changes" in refused.value.next_command
    assert not run.imported.exists()


def test_what_is_not_taken_is_told_in_one_line(tmp_path: Path, check: Checker) -> None:
    from workers.data.initial import summary

    file = write(tmp_path / "in.jsonl", line(), line(), line(LOOP), line(output="7"))
    found, _ = begin(RunDir(tmp_path / "now"), check, str(file))
    assert found.report is not None
    text = summary(found.report).replace(str(tmp_path), "")
    assert text == "1 tasks from /in.jsonl; not taken: duplicate 1, conflict 1, run 1"
