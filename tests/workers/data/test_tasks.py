"""`data.tasks`: a finite source accepts every form that is written or imported here, and verifies all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.task_kinds import NAMES
from tests.workers.data.given import ADD, TWICE, checker, line, merged, problem, triplet, write
from workers.data.data_set import read_data_set
from workers.data.record import encode
from workers.data.tasks import read_tasks
from workers.sandbox import Limits, Sandbox
from workers.tasks.entry import Entry


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=0.5, allow_weak=True), jobs=1) as one:
        yield one


def seen(entries: list[Entry]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(one.task, one.inputs, one.outputs) for one in entries]


def test_lines_of_every_form_are_tasks_of_step_0(tmp_path: Path, sandbox: Sandbox) -> None:
    path = write(tmp_path / "t.jsonl", line(), "", line(output="2", step=9, source="selfplay", key="forged"),
                 problem(message="m"), triplet(TWICE, "2", "4"))  # fmt: skip
    entries = read_tasks(path, sandbox, NAMES)
    assert seen(entries) == [
        ("ded", ("1",), ("2",)), ("ded", ("1",), ("2",)), ("ind", ("1", "2", "3"), ("2", "3", "4")),
        ("abd", ("2",), ("4",)), ("ded", ("2",), ("4",)),
    ]  # fmt: skip
    assert {(one.step, one.source) for one in entries} == {(0, "import")} and entries[2].message == "m"
    assert "forged" not in {one.key for one in entries}


def test_a_data_set_and_its_export_are_sources(tmp_path: Path, sandbox: Sandbox) -> None:
    """With the header, and as `data export` writes it: without."""
    into = tmp_path / "set.jsonl"
    with checker() as check:
        merged(into, check, write(tmp_path / "t.jsonl", line(), triplet(TWICE, "2", "4"), problem()))
    records = read_data_set(into).records
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"".join(encode(one) + b"\n" for one in records))
    wanted = [(one.task, one.inputs, one.outputs) for one in records]
    assert len(wanted) == 4
    assert seen(read_tasks(into, sandbox, NAMES)) == seen(read_tasks(out, sandbox, NAMES)) == wanted
    assert {one.task for one in read_tasks(out, sandbox, ("ind",))} == {"ind"}


BAD = {
    "an unknown key": (line(nonsense=1), "line 2: .*nonsense"),
    "half a line": (line()[:-9], "line 2: "),
    "other outputs than its program gives": (line(output="3"), "line 2: the line says 3, the program gives 2"),
    "a program that raises": (line("def f(a):\n    return 1 / 0"), "line 2: the program gives no value"),
    "a program that is none": (line("def f(a"), "line 2: "),
    "an input that is no literal": (line(ADD, "len('x')"), "line 2: "),
}


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD)
def test_the_line_that_cannot_be_used_is_named(text: str, why: str, tmp_path: Path, sandbox: Sandbox) -> None:
    with pytest.raises(LonghaulError, match=why) as caught:
        read_tasks(write(tmp_path / "t.jsonl", line(), text), sandbox, NAMES)
    assert caught.value.exit_code == ExitCode.INPUT


def test_what_is_no_file_and_a_file_that_was_cut_are_told(tmp_path: Path, sandbox: Sandbox) -> None:
    with pytest.raises(LonghaulError, match="is missing, or not a plain file") as caught:
        read_tasks(tmp_path, sandbox, NAMES)
    assert caught.value.exit_code == ExitCode.INPUT
    into = tmp_path / "set.jsonl"
    with checker() as check:
        merged(into, check, write(tmp_path / "t.jsonl", line(), line(TWICE)))
    into.write_bytes(b"".join(into.read_bytes().splitlines(keepends=True)[:-1]))
    assert json.loads(into.read_text().splitlines()[0])["tasks"] == 2
    with pytest.raises(LonghaulError, match="holds 1 lines, its header says 2"):
        read_tasks(into, sandbox, NAMES)
