"""Consolidation: every program is run again, equal tasks meet, every loss has a reason, held-out programs stay out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from profiles.errors import LonghaulError
from tests.workers.data.given import (
    ADD,
    HELD_OUT,
    LOOP,
    TWICE,
    a_run,
    checker,
    entry,
    line,
    merged,
    problem,
    triplet,
    write,
)
from workers.data import consolidate as module
from workers.data.checking import Checker, Stopped
from workers.data.consolidate import Report
from workers.data.data_set import backup_files, read_data_set

SET_ORDER = "def f(a):\n    return [x for x in {'a', 'b', 'c', 'd', 'e', 'f'}]"


@pytest.fixture(scope="module")
def check() -> Iterator[Checker]:
    with checker() as made:
        yield made


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "data" / "set.jsonl"


def counts(report: Report) -> tuple[int, ...]:
    """read, valid, added, duplicate, conflict, all invalid"""
    facts = report.as_json()
    names = ("read", "valid", "added", "duplicate", "conflict")
    return (*(facts[name] for name in names), sum(facts["invalid"].values()))


def tasks(into: Path) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(one.program, one.inputs, one.outputs) for one in read_data_set(into).records]


def test_B12_importing_the_same_file_twice_adds_nothing(into: Path, tmp_path: Path, check: Checker) -> None:
    path = write(tmp_path / "in.jsonl", line(), triplet(TWICE, "3", "6"), problem())
    first = merged(into, check, path)
    assert counts(first) == (4, 4, 4, 0, 0, 0) and first.written
    before = into.read_bytes()
    second = merged(into, check, path)
    assert counts(second) == (4, 4, 0, 4, 0, 0), "added 0, duplicate = valid"
    assert (second.written, second.backup, into.read_bytes()) == (False, "", before)


def test_B9_comments_and_spacing_hide_no_duplicate(into: Path, tmp_path: Path, check: Checker) -> None:
    two = "def f(a, b):\n    return a + b"
    same = 'def f(a: int, b):  # sums\n    """Sums."""\n    return (a+b)'
    report = merged(into, check, write(tmp_path / "in.jsonl", line(two, "1,2"), line(same, "1, 2")))
    assert counts(report) == (2, 2, 1, 1, 0, 0)
    assert tasks(into) == [(two, ("1, 2",), ("3",))]


def test_what_makes_another_task(into: Path, tmp_path: Path, check: Checker) -> None:
    path = write(tmp_path / "in.jsonl", line(), line(input_="2"), line(TWICE), line(task="abd"), line(ADD + " + 0"))
    assert counts(merged(into, check, path)) == (5, 5, 5, 0, 0, 0)


def test_outputs_come_from_running_the_program_never_from_the_file(into: Path, tmp_path: Path, check: Checker) -> None:
    report = merged(into, check, write(tmp_path / "in.jsonl", line(), line(TWICE, "3", output="7")))
    assert counts(report) == (2, 1, 1, 0, 0, 1)
    assert report.rejected == [
        {"source": "in.jsonl", "line": 2, "reason": "other_output", "text": "the line says 7, the program gives 6"}
    ]
    assert tasks(into) == [(ADD, ("1",), ("2",))]


INVALID = {
    "raises": (line("def f(a):\n    return 1 / 0"), "run"),
    "hangs": (line(LOOP), "run"),
    "is not the same in another process": (line(SET_ORDER), "determinism"),
    "gives no value": (line("def f(a):\n    a = 2\n    return None"), "output_literal"),
    "gives too long a value": (line("def f(a):\n    return 'x' * 5000"), "output_size"),
    "reads files": (line("import os\ndef f(a):\n    return os.getcwd()"), "screen"),
    "is no program": (line("def f(a"), "screen"),
    "has an input that is code": (line(input_="1) or __import__('os').getpid("), "input_literal"),
    "has no input": (json.dumps({"task": "ded", "program": ADD, "inputs": []}), "inputs"),
    "is an induction of one pair": (problem(inputs=("1",)), "inputs"),
    "is an induction of equal pairs": (problem(inputs=("1", "1", "1", "1", "2")), "inputs"),
    "is held out": (line(HELD_OUT), "held_out"),
    "is held out under comments and annotations": (
        line('def f(a: int) -> int:\n    """Mine."""\n    return (a - 1)  # new'),
        "held_out",
    ),
    "is held out as an induction": (problem(HELD_OUT), "held_out"),
    "is held out in the original's form": (triplet(HELD_OUT, "3", "2"), "held_out"),
    "is held out under another name": (line(HELD_OUT.replace("def f", "def solve")), "held_out"),
}


def test_each_invalid_task_is_dropped_with_its_reason_and_the_command_goes_on(
    into: Path, tmp_path: Path, check: Checker
) -> None:
    report = merged(into, check, write(tmp_path / "in.jsonl", *[text for text, _ in INVALID.values()], line()))
    found = {row["line"]: row["reason"] for row in report.rejected}
    assert found == {number: reason for number, (_, reason) in enumerate(INVALID.values(), start=1)}
    assert counts(report)[1:5] == (1, 1, 0, 0)
    assert report.as_json()["invalid"]["held_out"] == 6, "a triplet is two tasks"
    assert tasks(into) == [(ADD, ("1",), ("2",))]


def test_O8_a_held_out_program_of_a_run_is_refused_too(into: Path, tmp_path: Path, check: Checker) -> None:
    run = a_run(tmp_path / "night", entry(HELD_OUT, "3", "2"), entry())
    report = merged(into, check, run.root)
    assert report.as_json()["invalid"] == {"held_out": 1}
    assert tasks(into) == [(ADD, ("1",), ("2",))]


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_outputs_for_one_task_the_right_one_stays_wherever_it_stands(
    is_first: bool, into: Path, tmp_path: Path, check: Checker
) -> None:
    right, wrong = line(output="2"), line(output="3")
    report = merged(into, check, write(tmp_path / "in.jsonl", *([right, wrong] if is_first else [wrong, right])))
    assert counts(report) == (2, 1, 1, 0, 1, 0)
    (conflict,) = report.conflicts
    assert (conflict["outputs"], conflict["kept"]) == (["3"], [["1", "2"]])
    assert conflict["kept_from"] == f"in.jsonl:{1 if is_first else 2}"


def test_every_task_that_is_read_is_counted_once(into: Path, tmp_path: Path, check: Checker) -> None:
    path = write(tmp_path / "in.jsonl", *[text for text, _ in INVALID.values()], line(), line(), line(output="9"), "{")
    read, valid, added, duplicate, conflict, invalid = counts(merged(into, check, path, path))
    assert read == valid + conflict + invalid and valid == added + duplicate


def test_the_set_grows_by_what_is_new_and_keeps_its_order(into: Path, tmp_path: Path, check: Checker) -> None:
    first, second = write(tmp_path / "a", line(), line(TWICE)), write(tmp_path / "b", line(TWICE), line(input_="5"))
    merged(into, check, first)
    report = merged(into, check, second)
    assert (report.before, report.after, counts(report)) == (2, 3, (2, 2, 1, 1, 0, 0))
    assert [inputs for _, inputs, _ in tasks(into)] == [("1",), ("1",), ("5",)]
    assert [facts.source for facts in read_data_set(into).header.imports] == ["a", "b"]
    (backup,) = backup_files(into)
    assert report.backup == str(backup) and read_data_set(backup).header.tasks == 2


def test_a_merge_holds_what_its_sources_hold_and_nothing_else(into: Path, tmp_path: Path, check: Checker) -> None:
    merged(into, check, write(tmp_path / "a", line()))
    report = merged(into, check, write(tmp_path / "b", line(TWICE)), rebuild=True)
    assert (report.before, report.after) == (1, 1)
    assert [program for program, _, _ in tasks(into)] == [TWICE]
    assert [facts.source for facts in read_data_set(into).header.imports] == ["b"]
    assert len(backup_files(into)) == 1


@pytest.mark.parametrize("rebuild", [False, True])
def test_sources_without_a_valid_task_change_nothing(rebuild: bool, into: Path, tmp_path: Path, check: Checker) -> None:
    merged(into, check, write(tmp_path / "a", line()))
    before = into.read_bytes()
    report = merged(into, check, write(tmp_path / "b", "nonsense", line(LOOP)), rebuild=rebuild)
    assert (report.written, into.read_bytes(), counts(report)) == (False, before, (2, 0, 0, 0, 0, 2))


def test_where_a_task_comes_from_survives_every_journey(into: Path, tmp_path: Path, check: Checker) -> None:
    run = a_run(tmp_path / "night", entry(step=5, solve_rate=0.25))
    merged(into, check, run.root)
    second = tmp_path / "second.jsonl"
    merged(second, check, into)
    for path in (into, second):
        (record,) = read_data_set(path).records
        assert (record.origin.run, record.origin.run_id, record.origin.step) == ("night", "r0", 5)
        assert len(record.origin.model) == 64
        assert (record.source, record.solve_rate) == ("selfplay", 0.25)


def test_a_duplicate_brings_the_run_that_found_the_task_where_that_was_not_known(
    into: Path, tmp_path: Path, check: Checker
) -> None:
    merged(into, check, write(tmp_path / "theirs.jsonl", line()))
    merged(into, check, a_run(tmp_path / "night", entry(step=5)).root)
    merged(into, check, a_run(tmp_path / "later", entry(step=3)).root)
    (record,) = read_data_set(into).records
    assert (record.origin.file, record.origin.line) == ("theirs.jsonl", 1)
    assert (record.origin.run, record.origin.step) == ("night", 5), "what is known is never overwritten"


def test_sources_are_never_changed(into: Path, tmp_path: Path, check: Checker) -> None:
    path = write(tmp_path / "in.jsonl", line(), "nonsense", end="")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    merged(into, check, path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_set_is_not_its_own_source(into: Path, tmp_path: Path, check: Checker) -> None:
    merged(into, check, write(tmp_path / "in.jsonl", line()))
    (tmp_path / "link.jsonl").symlink_to(into)
    with pytest.raises(LonghaulError, match="cannot be its own source"):
        merged(into, check, tmp_path / "link.jsonl")


def test_a_set_verified_by_another_python_is_run_again_before_more_is_added(
    into: Path, tmp_path: Path, check: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(into, check, write(tmp_path / "in.jsonl", line(), line(TWICE, "2")))
    content = into.read_bytes()
    _, _, body = content.partition(b"\n")
    body = body.replace(b'"outputs":["4"]', b'"outputs":["5"]')  # as another Python might have found it
    header = read_data_set(into).header
    header = msgspec.structs.replace(header, checked_with="rules 1, Python 2.7",
                                     sha256=hashlib.sha256(body).hexdigest())  # fmt: skip
    into.write_bytes(msgspec.json.encode(header) + b"\n" + body)
    report = merged(into, check, write(tmp_path / "more.jsonl", line(input_="7")))
    assert report.dropped == {"other_output": 1}
    assert report.notes == ["the set was verified with rules 1, Python 2.7: it is run again"]
    assert [inputs for _, inputs, _ in tasks(into)] == [("1",), ("7",)]
    assert read_data_set(into).header.checked_with == module.CHECKED_WITH


def test_a_check_that_is_asked_to_stop_writes_nothing(into: Path, tmp_path: Path) -> None:
    with checker(stop_asked=lambda: True) as stopping, pytest.raises(Stopped):
        merged(into, stopping, write(tmp_path / "in.jsonl", line()))
    assert not into.exists()


def test_progress_is_told_to_the_last_program(into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.data.checking.CHUNK", 2)
    told: list[tuple[int, int]] = []
    lines = [line(input_=str(number)) for number in range(5)]
    with checker(progress=lambda done, total: told.append((done, total))) as check:
        merged(into, check, write(tmp_path / "in.jsonl", *lines, lines[0]))
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)], "equal tasks run once"
