"""`compare`: runs side by side, and a test of their difference that is right about noise."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import compare
from orchestrator.commands.compare import read
from orchestrator.comparing import (
    Compared,
    accuracy_difference,
    as_json,
    as_markdown,
    as_text,
    curves,
    profile_differences,
    table,
)
from orchestrator.display.scores import Score
from profiles.errors import ExitCode, LonghaulError
from profiles.metrics import QUANTILES
from state.history import AnswerBits, CycleFacts, History, StepFacts, ValidationFacts
from state.states import CycleState, RunState
from tests.builders import a_series, build_store

PROBLEMS = tuple(f"p{number}" for number in range(400))


def a_run(
    name: str, solved: set[int] | None = None, *, suite: str = "words", steps: int = 20, **profile: Any
) -> Compared:
    """A run whose last model solved these problems; None: it is not validated."""
    scores: tuple[ValidationFacts, ...] = ()
    if solved is not None:
        bits = AnswerBits(PROBLEMS, sum(1 << place for place in solved))
        share = len(solved) / len(PROBLEMS)
        metrics = {"mean": {"accuracy": share, "n": len(PROBLEMS), "low": share - 0.05, "high": share + 0.05}}
        scores = (ValidationFacts(1, steps, suite, share, len(solved), len(PROBLEMS), metrics, {suite: bits}),)
    cycle = CycleFacts(1, "train", CycleState.COMMITTED, 1, steps + 1, validations=scores)
    history = History(
        "id", name, RunState.FINISHED, recent=(cycle,), last_validation=scores[0] if scores else None,
        best_validation=scores[0] if scores else None, training_s=90.0,
    )  # fmt: skip
    metrics_of_step = {"seconds/rollout": 1.5, "seconds/update": 0.4, "tokens": 1000.0, "tokens_mean": 50.0}
    metrics_of_step |= {f"rewards/p{percent}": percent / 100 for percent in QUANTILES}
    trained = [StepFacts(number, 1, 2.0, metrics_of_step | {"reward": 0.1 * number}) for number in range(1, steps + 1)]
    return Compared(
        history, {"name": name, "optimizer": {"learning_rate": 1e-4}} | profile, trained, a_series(trained), scores,
        {suite: [Score(one.step, one.accuracy, one.accuracy - 0.05, one.accuracy + 0.05) for one in scores]},
    )  # fmt: skip


def cells(runs: list[Compared], name: str) -> tuple[str, ...]:
    return next(row.cells for row in table(runs) if row.name.strip() == name)


def test_figures_stand_side_by_side() -> None:
    runs = [a_run("a", set(range(100)), steps=20), a_run("b", None, steps=10)]
    assert cells(runs, "run") == ("a", "b")
    assert cells(runs, "tokens") == ("20,000", "10,000")
    assert cells(runs, "held-out") == ("0.250 [0.20, 0.30] (step 20)", "not validated")
    assert cells(runs, "rollout") == ("75 %", "75 %")
    assert cells(runs, "a step") == ("2.0 s", "2.0 s")
    assert cells(runs, "tokens/s") == ("500", "500")
    assert cells(runs, "p10 to p90") == ("+0.10 +0.25 +0.50 +0.75 +0.90",) * 2
    assert cells(runs, "reward") == ("+1.050 [+0.600, +1.500]", "+0.550 [+0.300, +0.800]")


def test_runs_are_also_compared_where_the_shorter_one_ended() -> None:
    runs = [a_run("a", set(range(100)), steps=10), a_run("b", set(range(200)), steps=20)]
    assert cells(runs, "at 10 steps") == ("0.250 [0.20, 0.30]", "?")
    same = [a_run("a", set(range(100))), a_run("b", set(range(200)))]
    for place in ("20 steps", "20k tokens", "40 s"):
        assert cells(same, f"at {place}") == ("0.250 [0.20, 0.30]", "0.500 [0.45, 0.55]")


def test_json_has_the_quantiles_of_lengths_and_of_rewards() -> None:
    run = a_run("a", {1})
    step = run.newest[0]
    lengths = {f"lengths/p{percent}": float(percent) for percent in QUANTILES}
    found = as_json([replace(run, newest=[replace(step, metrics={**step.metrics, **lengths})])])["runs"]
    assert found["tokens/answer p10 to p90"] == ["10 25 50 75 90"]
    assert found["reward p10 to p90"] == ["+0.10 +0.25 +0.50 +0.75 +0.90"]


def test_what_is_compared_at_equal_cost_is_the_last_score_before_it_however_long_the_run(tmp_path: Path) -> None:
    def validated(cycles: int) -> Iterator[tuple[Any, ...]]:
        for cycle in range(1, cycles + 1):
            share = cycle * 0.618 % 1  # no other step near it has the same
            metrics = json.dumps({"mean": {"accuracy": share, "n": 100, "low": 0.0, "high": 1.0}})
            yield (f"c{cycle:06d}", "words", cycle, 1, cycle, share, 0, 100, metrics, 0.0, 0)

    long, short = (build_store(tmp_path / str(n), cycles=n, steps=n, validation_rows=validated(n)) for n in (1000, 505))
    expected = f"{505 * 0.618 % 1:.3f} [0.00, 1.00]"
    assert cells([read(long), read(short)], "at 505 steps") == (expected, expected)


def test_curves_stand_over_steps_tokens_and_hours_on_one_scale() -> None:
    lines = curves([a_run("a", {1}, steps=20), a_run("long", {1}, steps=40)]).splitlines()
    start = lines.index("reward in training, 0.1 to 4")
    assert lines[start + 1].split() == ["to", "40", "steps", "to", "40k", "tokens", "to", "1", "m", "20", "s"]
    short, long = (re.findall("[▁-█]+", lines[start + row]) for row in (2, 3))
    assert short == ["▁▁▂▂▂▂▃▃▃▄▄▄▄"] * 3 and long == ["▁▁▂▂▂▂▃▃▃▄▄▄▄▅▅▅▆▆▆▇▇▇██"] * 3
    assert lines[start + 2].endswith("  2") and lines[start + 3].endswith("  4")


def test_a_difference_on_the_same_problems_is_paired() -> None:
    """Both solve the same 200, and one 20 more: problem by problem that is certain, side by side it would be noise."""
    text = accuracy_difference(a_run("a", set(range(200))), a_run("b", set(range(220))))
    assert text.startswith("b - a: +5.0 points (95 %: +") and "the same 400 problems" in text
    assert text.endswith("beyond noise")


def test_a_difference_within_noise_is_called_that() -> None:
    draw = random.Random(0)
    first, other = (set(draw.sample(range(400), 200)) for _ in range(2))
    assert accuracy_difference(a_run("a", first), a_run("b", other)).endswith("within noise")


def test_equal_models_are_called_different_in_at_most_one_of_twenty() -> None:
    draw = random.Random(1)
    wrong = 0
    for _ in range(400):
        hard = [draw.random() for _ in PROBLEMS]  # each problem's chance to be solved, the same for both
        first, other = ({n for n, chance in enumerate(hard) if draw.random() < chance} for _ in range(2))
        wrong += accuracy_difference(a_run("a", first), a_run("b", other)).endswith("beyond noise")
    assert wrong <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_runs_of_other_suites_or_without_validations_are_not_compared() -> None:
    assert accuracy_difference(a_run("a", {1}), a_run("b", None)) == "b - a: not both are validated"
    assert "no held-out suite that both" in accuracy_difference(a_run("a", {1}), a_run("b", {1}, suite="maths"))


def test_only_knobs_that_differ_are_shown_and_names_are_not_knobs() -> None:
    rows = profile_differences([a_run("a", run={"seed": 0}), a_run("b", run={"seed": 1, "gpus": 2})])
    assert [(row.name, row.cells) for row in rows] == [("run.gpus", ("-", "2")), ("run.seed", ("0", "1"))]


def test_markdown_has_a_cell_for_each_run_and_hostile_names_stay_text() -> None:
    text = as_markdown([a_run("a|b<script>", {1}), a_run("c", {2})])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == r"| run | a\|b\<script\> | c |" and rows[1] == "| --- | --- | --- |"
    assert "<script>" not in re.sub("(?s)```.*```", "", text)


def test_no_name_ends_a_block_of_code() -> None:
    text = as_markdown([a_run("`````", None, steps=0), a_run("b", {2})])
    fences = [line for line in text.splitlines() if line and set(line) == {"`"}]
    assert fences == ["`" * 6] * 2


def test_text_has_no_control_characters() -> None:
    text = as_text([a_run("a\x1b[2J", {1}), a_run("b", {2}, note="\x1b]0;x\x07")])
    assert all(sign == "\n" or sign.isprintable() for sign in text)


def arguments(runs: Path, *names: str, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"runs": runs, "run": None, "names": list(names), "json": False, "format": "text"} | more
    )


def test_stores_are_compared_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "one", cycles=3, steps=30)
    build_store(tmp_path / "two", cycles=5, steps=100)
    assert compare.run(arguments(tmp_path, "one", "two")) == 0
    assert "two - one: " in capsys.readouterr().out
    assert compare.run(arguments(tmp_path, "two", run="one", json=True)) == 0
    assert json.loads(capsys.readouterr().out)["runs"]["steps"] == ["30", "100"]


@pytest.mark.parametrize(
    ("names", "code"), [(["one"], ExitCode.USAGE), (["one", "../x"], ExitCode.USAGE), (["one", "gone"], ExitCode.INPUT)]
)
def test_what_cannot_be_compared_is_refused(names: list[str], code: ExitCode, tmp_path: Path) -> None:
    build_store(tmp_path / "one")
    with pytest.raises(LonghaulError) as told:
        compare.run(arguments(tmp_path, *names))
    assert told.value.exit_code == code
