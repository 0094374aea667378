"""The table of GRPO's learning: which runs are compared, and when one counts as improved."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks._programs import write_rows
from benchmarks._runs import chosen, lanes_of
from benchmarks.grpo_learning import VARIANTS, is_risen, main, steps_to, tables, verdict
from workers.intervals import wilson
from workers.problems.test_rows import unit_tests_of


def point(step: int, accuracy: float, n: int = 900) -> dict[str, Any]:
    low, high = wilson(accuracy * n, n)
    score = {"accuracy": accuracy, "low": low, "high": high, "sampled_accuracy": accuracy, "worked_share": accuracy,
             "mean_tokens": 10.0}  # fmt: skip
    return {
        "step": step, "training_s": step * 3.0, "metrics": dict.fromkeys(("ops1", "ops2", "ops3", "mean"), score),
        "before": {"kept_tokens": 0.5, "uniform_share": 0.25} if step else {},
    }  # fmt: skip


def curve(*points: dict[str, Any]) -> dict[str, Any]:
    return {
        "points": list(points),
        "state": "stopped",
        "reason": "its time is up",
        "wall_s": 400.0,
        "training_s": 360.0,
    }


@pytest.mark.parametrize(
    ("first", "last", "risen"),
    [
        pytest.param(0.25, 0.95, True, id="far above"),
        pytest.param(0.25, 0.28, False, id="above, but within the intervals"),
        pytest.param(0.50, 0.20, False, id="below"),
    ],
)
def test_a_run_has_risen_where_the_intervals_are_apart(first: float, last: float, risen: bool) -> None:
    assert is_risen(curve(point(0, first), point(100, last))) == risen


def test_a_run_without_validations_has_not_risen_and_says_how_it_ended() -> None:
    failed = curve()
    assert not is_risen(failed)
    assert "no validation: stopped (its time is up)" in tables({"plain": {"0": failed}})


def test_the_table_has_every_run_with_both_intervals_and_a_line_for_all_seeds() -> None:
    good, flat = curve(point(0, 0.25), point(100, 0.95)), curve(point(0, 0.25), point(100, 0.25))
    shown = tables({"plain": {"0": good, "1": flat}, "mask": {"0": good}})
    assert shown.count("0.250 [0.22, 0.28]  0.950 [0.93, 0.96]  yes") == 2
    assert "1 of 2 seeds rose beyond their interval" in shown and "1 of 1 seeds rose" in shown
    assert "0.50    0.25" in shown
    assert verdict([flat]) == "0 of 1 seeds rose beyond their interval"


def test_the_step_is_told_at_which_nine_of_ten_samples_are_right() -> None:
    rising = curve(point(0, 0.2), point(20, 0.85), point(40, 0.9), point(60, 0.95))
    assert steps_to(rising, 0.9) == "40"
    assert steps_to(rising, 0.99) == "-"


def test_files_of_several_calls_make_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = curve(point(0, 0.25), point(100, 0.95))
    (tmp_path / "a.json").write_text(json.dumps({"plain": {"0": good}}))
    (tmp_path / "b.json").write_text(json.dumps({"plain": {"1": good}, "sent": {"0": good}}))
    main(["--read", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json", str(tmp_path / "c.json")])
    assert "2 of 2 seeds rose" in capsys.readouterr().out
    assert "1 of 1 seeds rose" in (tmp_path / "c.txt").read_text()
    assert set(json.loads((tmp_path / "c.json").read_text())["plain"]) == {"0", "1"}


def test_mask_and_sent_are_compared_in_every_combination() -> None:
    masks = {name: any("percentile" in one for one in settings) for name, settings in VARIANTS.items()}
    sents = {name: "grpo.sent.enabled=true" in settings for name, settings in VARIANTS.items()}
    assert {(masks[name], sents[name]) for name in VARIANTS} == {(a, b) for a in (True, False) for b in (True, False)}


def test_the_start_the_end_and_about_one_point_a_minute_are_shown() -> None:
    points = [point(step, 0.3) for step in range(0, 101, 10)]
    assert [entry["step"] for entry in chosen(points)] == [0, 20, 40, 60, 80, 100]
    assert [entry["step"] for entry in chosen(points[:2])] == [0, 10]


def test_each_run_has_two_cpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3, 8, 9})
    assert lanes_of(argparse.Namespace(cpus="", parallel=3)) == [[0, 1], [2, 3], [8, 9]]
    assert lanes_of(argparse.Namespace(cpus="4,5:6", parallel=1)) == [[4, 5], [6]]
    with pytest.raises(SystemExit, match="needs 8 CPUs; there are 6"):
        lanes_of(argparse.Namespace(cpus="", parallel=4))


def test_the_rows_of_programs_show_three_pairs_and_are_judged_by_six(tmp_path: Path) -> None:
    first, again = (write_rows(tmp_path / name, 20).read_text() for name in ("a.jsonl", "b.jsonl"))
    rows = [json.loads(line) for line in first.splitlines()]
    assert first == again and len({row["prompt"] for row in rows}) == 20
    for row in rows:
        assert row["prompt"].count("<out>") == 3 and len(unit_tests_of(row) or ()) == 6
        assert all(one["input"] + "<out>" + one["output"] in row["prompt"] for one in row["tests"][:3])


def test_scores_of_other_tasks_than_word_problems_have_their_mean_in_the_table() -> None:
    one = point(0, 0.25)
    metrics = {"code": one["metrics"]["mean"], "mean": one["metrics"]["mean"]}
    line = tables({"code": {"0": curve(one | {"metrics": metrics})}}).splitlines()[1]
    assert line.count("0.250 [0.22, 0.28]") == 1
