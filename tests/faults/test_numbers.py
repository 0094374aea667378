"""Rows N1 and N2, and the crash-loop rule: what is wrong with numbers and data is a verdict, never a loss."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants


def test_N1_one_bad_update_is_skipped_and_told(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="nan:3") as run:
        run.finish()
        assert [event["in_row"] for event in run.events("not_finite")] == [1]
        assert run.attempts() == [("succeeded", 0, "")]
        no_nan_is_saved(run)
        check_invariants(run)


def test_N1_three_bad_updates_in_a_row_go_back_to_the_head(tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="nan:3:3") as run:
        run.finish()
        assert [(code, failure) for _, code, failure in run.attempts()] == [(76, "NOT_FINITE"), (0, "")]
        no_nan_is_saved(run)
        check_invariants(run)


def no_nan_is_saved(run: Scene) -> None:
    for file in run.run.checkpoints.glob("c*/*.json"):
        found: list[str] = []
        json.loads(file.read_text(), parse_constant=found.append)
        assert not found, f"{file}: {found}"


def test_N2_exhausted_data_is_a_verdict(tmp_path: Path) -> None:
    knobs = {"fake__fault": "exhausted:5", "run__max_cycles": 3}
    with scene(tmp_path / "run", **knobs) as run:
        master = run.start()
        assert master.end() == 78, master.text()
        assert run.head_step() == 4
        assert run.one("SELECT state FROM runs") == "stagnant"
        assert run.attempts("validate"), "what was trained is validated"
        check_invariants(run)


def test_a_crash_loop_ends_with_70_and_names_the_head(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__fault="error:3!") as run:
        error = run.finish(code=70).err.read_text()
        assert "3 attempts in a row ended in INTERNAL at the same step" in error
        assert "the fake trainer was asked to fail" in error, "the last lines of the log"
        assert "kept:  head is step 2" in error and "next:  tail" in error and "Traceback (most" not in error
        assert run.head_step() == 2
        check_invariants(run)
        again = run.start()
        assert again.end() == 70, "a person who starts it again gets as many attempts"
        assert len(run.attempts()) == 6
        run.finish("", "--accept-changes", fake__fault="")
        check_invariants(run, clean.ending)
