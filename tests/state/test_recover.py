import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state import recover
from state.history import CheckpointFacts
from state.layout import RunDir
from state.recover import FoundDir, plan
from tests.state.samples import python, row, save, write_state

RUN = RunDir(Path("/runs/night"))


def known(name: str, parent: str | None, step: int, state: str = "committed") -> CheckpointFacts:
    return CheckpointFacts(name, parent, 1, step, f"checkpoints/{name}", "d", 1, verified=True, state=state)


def found(name: str, parent: str | None = None, step: int = 0, problem: str = "", run_id: str = "r") -> FoundDir:
    path = RUN.checkpoints / name
    return FoundDir(path, problem) if problem else FoundDir(path, "", name, run_id, parent, step)


A, B, C = known("a", None, 1), known("b", "a", 2), known("c", "b", 3)
FA, FB, FC = found("a", None, 1), found("b", "a", 2), found("c", "b", 3)
BAD_C, BAD_B = found("c", problem="flipped"), found("b", problem="flipped")


@pytest.mark.parametrize(
    ("seen", "rows", "head", "expected"),
    [
        pytest.param([], [], None, "", id="a new run needs nothing"),
        pytest.param([FA, FB], [A, B], B, "", id="a whole run needs nothing"),
        pytest.param([FA, FB], [A], A, "adopt b", id="m4 a whole child of the head is adopted"),
        pytest.param([FA, FC, FB], [A], A, "adopt b, adopt c", id="and its child too, in the order of the chain"),
        pytest.param([FA], [], None, "adopt a", id="the first checkpoint of a run is adopted"),
        pytest.param([found("b", "a", 2)], [], None, "quarantine b", id="a child of nobody is not"),
        pytest.param([FA, found("b", "a", 2, run_id="s")], [A], A, "quarantine b", id="d13 another run's is not"),
        pytest.param([FA, FB, found("x", "a", 3)], [A, B], B, "quarantine x", id="nor a child of an older one"),
        pytest.param([FA, BAD_B], [A], A, "quarantine b", id="nor a damaged child"),
        pytest.param([FA, BAD_B, FC], [A], A, "quarantine b, quarantine c", id="nor what hangs on a damaged child"),
        pytest.param(
            [FA, FB, FC, found("x", "a", 2)], [A], A, "quarantine x, adopt b, adopt c", id="of two, the longer line"
        ),
        pytest.param([FB, found("y", "b", 1)], [B], B, "quarantine y", id="steps never go back"),
        pytest.param([FA, found(".staging-t"), found(".trash-x")], [A], A, "delete .staging-t, delete .trash-x",
                     id="w4 staging and trash go"),
        pytest.param([FA, found(".staging-live")], [A], A, "", id="the staging of a live attempt stays"),
        pytest.param([FA, FB, BAD_C], [A, B, C], C, "quarantine c, walk_back b", id="d4 the damaged head falls back"),
        pytest.param([FA, BAD_B, BAD_C], [A, B, C], C, "quarantine b, quarantine c, walk_back a",
                     id="d4 to the newest whole one"),
        pytest.param([FA, FB], [A, B, C], C, "quarantine c, walk_back b", id="a head that is gone falls back"),
        pytest.param([FA, BAD_C], [A, C], C, "quarantine c, walk_back a", id="also over a pruned ancestor"),
        pytest.param([FA, BAD_B, FC], [A, B], B, "quarantine b, adopt c", id="a whole child replaces a damaged head"),
        pytest.param([FA, FB, FC], [A, B, known("c", "b", 3, "deleting")], B, "", id="m6 deleting rows are not ours"),
    ],
)  # fmt: skip
def test_what_is_repaired(
    seen: list[FoundDir], rows: list[CheckpointFacts], head: CheckpointFacts | None, expected: str
) -> None:
    repairs = plan(RUN, seen, rows, head, "r", live_tokens={"live"})
    assert ", ".join(f"{repair.kind} {repair.path.name}" for repair in repairs) == expected


@pytest.mark.parametrize("seen", [[], [BAD_B], [BAD_B, found(".staging-t"), found("z", "q", 9)]])
def test_d5_where_no_checkpoint_is_whole_it_refuses_and_never_starts_afresh(seen: list[FoundDir]) -> None:
    with pytest.raises(LonghaulError) as error:
        plan(RUN, seen, [B], B, "r")
    assert error.value.exit_code == ExitCode.STORE
    assert "checkpoints/b" in error.value.what


# --- on real files -------------------------------------------------------------------------------------------------


def carry_out(run: RunDir, rows: list[CheckpointFacts], head: CheckpointFacts | None) -> str:
    repairs = recover.plan_recovery(run, "run-a", rows, head)
    for repair in repairs:
        recover.apply(run, repair)
    return ", ".join(f"{repair.kind} {repair.path.name}" for repair in repairs)


def test_d4_a_flipped_bit_in_the_head_is_quarantined_with_the_reason(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first = save(run, 1)
    second = save(run, 2, first.checkpoint_id)
    (second.directory / "weights.bin").write_bytes(b"weightS")
    name = second.directory.name
    assert carry_out(run, [row(first), row(second)], row(second)) == (
        f"quarantine {name}, walk_back {first.directory.name}"
    )
    assert "weights.bin was changed" in (run.quarantine / f"{name}.WHY").read_text()
    assert (run.quarantine / name / "weights.bin").read_bytes() == b"weightS"
    assert carry_out(run, [row(first), row(second, "quarantined")], row(first)) == ""


def test_a_whole_child_is_adopted_and_a_link_and_a_stray_file_are_not(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first = save(run, 1)
    second = save(run, 2, first.checkpoint_id)
    (run.checkpoints / "c9").symlink_to(first.directory)
    (run.checkpoints / "notes.txt").write_text("hello")
    (run.checkpoints / ".staging-dead").mkdir()
    done = carry_out(run, [row(first)], row(first))
    assert done == f"delete .staging-dead, quarantine c9, quarantine notes.txt, adopt {second.directory.name}"
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [first.directory.name, second.directory.name]
    assert (run.quarantine / "c9").is_symlink()


def test_quarantine_never_overwrites_what_is_there(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for content in (b"one", b"two"):
        stray = save(run, 5, "nobody", token="t9", write=write_state(content))
        carry_out(run, [], None)
    name = stray.directory.name
    assert (run.quarantine / name / "weights.bin").read_bytes() == b"one"
    assert (run.quarantine / f"{name}.2" / "weights.bin").read_bytes() == b"two"


RECOVER_CODE = """
import sys
from pathlib import Path
from state import recover
from state.layout import RunDir
run = RunDir(Path(sys.argv[1]))
for repair in recover.plan_recovery(run, "run-a", [], None):
    recover.apply(run, repair)
"""


@pytest.mark.parametrize("point", ["recover.before_quarantine", "durable.before_rename", "recover.after_quarantine"])
def test_m8_a_kill_during_recovery_changes_nothing_in_the_end(tmp_path: Path, point: str) -> None:
    run = RunDir(tmp_path)
    stray = save(run, 5, "nobody")
    child = python(RECOVER_CODE, run.root, LONGHAUL_CRASHPOINT=f"{point}:1")
    assert child.returncode == -signal.SIGKILL, child.stderr
    carry_out(run, [], None)
    assert sorted(path.name for path in run.quarantine.iterdir() if not path.name.startswith(".")) == [
        stray.directory.name,
        f"{stray.directory.name}.WHY",
    ]
    assert not list(run.checkpoints.iterdir())


@pytest.mark.parametrize(
    "place",
    [
        lambda run: run.root / "state.db",
        lambda run: run.checkpoints / "c0001-s000001-t0",
        lambda run: run.checkpoints / ".." / ".staging-x",
    ],
)
def test_a_repair_deletes_nothing_but_staging_and_trash(tmp_path: Path, place: Callable[[RunDir], Path]) -> None:
    run = RunDir(tmp_path)
    save(run, 1)
    path = place(run)
    with pytest.raises(ValueError, match="refused"):
        recover.apply(run, recover.Repair(recover.Kind.DELETE, path, "by mistake"))
    assert os.path.lexists(run.checkpoints / "c0001-s000001-t0")
