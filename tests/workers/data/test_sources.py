"""Sources of tasks: torn and foreign files line by line, and runs with the model that found each task."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from state import checkpoint
from state.layout import RunDir
from state.reader import Reader
from tests.workers.data.given import ADD, TWICE, a_run, checker, entry, line, merged, triplet, write
from workers.data import sources
from workers.data.sources import Item, Source, check_source, read_source


def items(path: Path) -> tuple[list[Item], list[str]]:
    """What it holds, and what was noted about it."""
    notes: list[str] = []
    return list(read_source(Source(path, path.name), notes.append)), notes


def test_every_line_of_a_file_is_a_task_or_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE", 400)
    path = write(tmp_path / "in.jsonl", line(), "", "nonsense", "x" * 2_000_000, triplet(), line()[:20], end="")
    found, notes = items(path)
    assert [(one.line, one.reason) for one in found] == [
        (1, ""), (3, "not_json"), (4, "too_long"), (5, ""), (5, ""), (6, "torn"),
    ]  # fmt: skip
    assert [one.record.origin.file for one in found if one.record] == ["in.jsonl"] * 3
    assert [one.record.origin.line for one in found if one.record] == [1, 5, 5]
    assert notes == []


def test_a_last_line_without_its_end_that_is_whole_is_a_task(tmp_path: Path) -> None:
    found, _ = items(write(tmp_path / "in.jsonl", line(), end=""))
    assert [one.reason for one in found] == [""]


def test_lines_may_end_as_they_do_on_windows(tmp_path: Path) -> None:
    found, _ = items(write(tmp_path / "in.jsonl", line(), line(TWICE), end="\r\n"))
    assert [one.reason for one in found] == ["", ""]


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert items(write(tmp_path / "in.jsonl", end="")) == ([], [])


def test_a_data_set_that_lost_lines_is_noticed_and_the_rest_is_read(tmp_path: Path) -> None:
    into = tmp_path / "set.jsonl"
    with checker() as check:
        merged(into, check, write(tmp_path / "in.jsonl", line(), line(TWICE)))
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(into.read_bytes()[:-40])
    found, notes = items(cut)
    assert [one.reason for one in found] == ["", "torn"]
    cut.write_bytes(b"".join(into.read_bytes().splitlines(keepends=True)[:-1]))
    found, notes = items(cut)
    assert len(found) == 1
    assert notes == ["cut.jsonl holds 1 lines, its header says 2: it was cut or changed"]


def test_what_cannot_be_a_source_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "nowhere", "nowhere is not there"),
        (tmp_path, "is a folder without a run in it"),
        (tmp_path / "pipe", "pipe is not a plain file"),
        (Path("/dev/zero"), "is not a plain file"),
    ):
        with pytest.raises(LonghaulError, match=why) as refused:
            check_source(Source(path, path.name or str(path)))
        assert refused.value.exit_code == ExitCode.INPUT


# --- runs ------------------------------------------------------------------------------------------------------------


def digests(run: RunDir) -> dict[int, str]:
    reader = Reader.open(run)
    try:
        return {facts.step: facts.digest for facts in reader.checkpoints()}
    finally:
        reader.close()


def test_a_task_of_a_run_knows_its_run_its_step_and_the_model_that_found_it(tmp_path: Path) -> None:
    seed, early, late = entry(step=0), entry(input_="2", output="3", step=5), entry(TWICE, step=6)
    run = a_run(tmp_path / "night", seed, early, late, steps=(0, 5, 10))
    found, notes = items(run.root)
    origins = [one.record.origin for one in found if one.record]
    assert [(o.run, o.run_id, o.step) for o in origins] == [("night", "r0", 0), ("night", "r0", 5), ("night", "r0", 6)]
    known = digests(run)
    # Seeding changes no weight; step 5 began from the checkpoint of step 0; step 6 from that of step 5.
    assert [o.model for o in origins] == [known[0], known[0], known[5]]
    assert notes == []


def test_a_run_gives_what_its_buffers_hold_and_what_has_left_them_each_once(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night", entry(), entry(task="abd"), found=(entry(), entry(TWICE, "4", "8", step=3)))
    found, _ = items(run.root)
    rows = [(one.record.task, one.record.program, one.record.inputs) for one in found if one.record]
    assert rows == [("abd", ADD, ("1",)), ("ded", ADD, ("1",)), ("ded", TWICE, ("4",))]
    assert [one.record.outputs for one in found if one.record][-1] == ("8",)


def test_a_run_whose_head_is_damaged_gives_what_its_store_knows_and_says_so(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night", entry(), found=(entry(TWICE, "4", "8", step=3),))
    (folder,) = run.checkpoints.glob("*s000005*")
    (folder / checkpoint.MANIFEST).unlink()
    found, notes = items(run.root)
    assert [one.record.program for one in found if one.record] == [TWICE]
    (note,) = notes
    assert note.startswith("the buffers of c0001-s000005") and "using only what the store knows" in note


def test_a_run_without_tasks_says_so(tmp_path: Path) -> None:
    assert items(a_run(tmp_path / "night").root) == ([], ["run night holds no tasks yet"])


def test_reading_a_run_changes_no_byte_of_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night", entry(), found=(entry(TWICE, "4", "8", step=3),))

    def content() -> dict[str, str]:
        files = [path for path in run.root.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = content()
    items(run.root)
    assert content() == before


def test_what_a_run_had_imported_keeps_where_it_came_from(tmp_path: Path) -> None:
    run = a_run(tmp_path / "night", replace(entry(step=0), source="import"))
    with checker() as check:
        merged(run.imported, check, write(tmp_path / "theirs.jsonl", line(), line(TWICE)))
    found, _ = items(run.root)
    origins = [(one.record.program, one.record.origin.file, one.record.origin.run) for one in found if one.record]
    assert origins == [(ADD, "theirs.jsonl", ""), (TWICE, "theirs.jsonl", "")]
