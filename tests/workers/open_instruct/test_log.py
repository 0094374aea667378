"""What is read from the log of open-instruct, and what of it is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from profiles.metrics import metric_of
from workers.open_instruct.log import NAMES, WIDTH, Parser, Saved, Step, StepMetrics, Tail

SAVED = "2026-11-23 08:00:00 - INFO - grpo_fast.py:2022 - Saved checkpoint state at step 20 to /runs/a/state"


def rendered(rows: dict[str, str], width: int = WIDTH) -> str:
    """Rows as rich draws them in a panel, as the program asks it to."""
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column()
    for category, values in rows.items():
        table.add_row(category, values)
    console = Console(width=width)
    with console.capture() as drawn:
        console.print(Panel(table, title="Metrics", expand=False))
    return drawn.get()


ROWS = {
    "loss": "policy_avg: 0.12 | total_avg: -0.50",
    "other": "episode: 160 | training_step: 20 | lr: 1.00e-06 | scores: 3.25",
    "time": "total: 134.20 | training: 60.00",
    "val": "stop_rate: 0.75 | sequence_lengths: 812.50 | ratio_var: nan | x/y: inf",
}


def facts(text: str) -> list[Step | Saved]:
    parser = Parser()
    return [fact for line in text.split("\n") if (fact := parser.take(line))]


def test_a_panel_is_a_step_with_every_number_by_its_full_name() -> None:
    (step,) = facts(rendered(ROWS))
    assert isinstance(step, Step) and step.number == 20
    expected = {"loss/total_avg": -0.5, "lr": 1e-6, "scores": 3.25, "time/total": 134.2, "val/x/y": float("inf")}
    assert expected.items() <= step.data.items()


def test_a_line_of_the_logger_says_which_step_was_saved() -> None:
    assert facts(SAVED) == [Saved(20)]


def test_lines_of_other_processes_and_progress_bars_within_a_panel_are_passed_over() -> None:
    lines = rendered(ROWS).splitlines()
    other = ["(Rank pid=3) │ other  training_step: 7 │", "step:  50%|███   | 1/2", "", "\x1b[36m(W pid=1)\x1b[0m x"]
    mixed = [part for line in lines for part in (line, *other)]
    assert repr(facts("\n".join(mixed))) == repr(facts("\n".join(lines)))  # NaN is not itself


@pytest.mark.parametrize("kept", range(1, 5))
def test_a_panel_that_was_cut_off_is_no_step_and_does_not_spoil_the_next(kept: int) -> None:
    whole = rendered(ROWS)
    cut = "\n".join(whole.splitlines()[:kept])
    assert repr(facts(f"{cut}\n{whole}")) == repr(facts(whole))  # NaN is not itself


def test_the_panel_of_an_evaluation_is_no_step() -> None:
    assert facts(rendered({"eval": "scores: 0.40 | stop_rate: 0.90"})) == []


def test_a_row_that_was_cut_off_is_left_out() -> None:
    lines = rendered(ROWS).splitlines()
    broken = [line[:20] if " val " in line else line for line in lines]
    (step,) = facts("\n".join(broken))
    assert isinstance(step, Step) and step.number == 20 and "val/stop_rate" not in step.data


@pytest.mark.parametrize(
    "line",
    [
        "the answer is 3\r" + SAVED,
        "│ response  " + SAVED + " │",
        "(Rank pid=3) " + SAVED,
        SAVED.replace("grpo_fast.py", "answers.py"),
        SAVED.replace("step 20", "step 20e9"),
        SAVED.replace("step 20", "step -1"),
        "│ ╭── Metrics ──╮ │",
        "\x00\x1b[2J\ud800",
    ],
)
def test_a_text_of_the_model_is_neither_a_save_nor_a_panel(line: str) -> None:
    assert facts(f"{line}\n│ other  training_step: 9 │\n╰──╯") == []


@pytest.mark.parametrize("number", ["0", "-1", "2.5", "nan", "inf", "1e12", "x"])
def test_a_number_that_is_no_step_is_none(number: str) -> None:
    assert facts(rendered({"other": f"training_step: {number}"})) == []


def test_a_line_counts_once_it_is_whole_and_only_what_comes_after_the_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert list(Tail(path).facts()) == []
    path.write_text(SAVED.replace("20", "10", 1) + "\n")
    tail = Tail(path)
    with path.open("a") as file:
        file.write(SAVED[:40])
        file.flush()
        assert list(tail.facts()) == []
        file.write(SAVED[40:] + "\n\udcff".encode(errors="surrogateescape").decode(errors="replace") + "\n")
        file.flush()
        assert list(tail.facts()) == [Saved(20)] and list(tail.facts()) == []


def test_a_line_without_end_is_no_trap(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    path.write_bytes(b"x" * (3 << 20) + b"\n" + SAVED.encode() + b"\n")
    assert list(tail.facts()) == [Saved(20)]


def test_metrics_have_our_names_and_leave_out_what_is_not_finite() -> None:
    (step,) = facts(rendered(ROWS))
    assert isinstance(step, Step)
    found = StepMetrics(rollouts=256).of(step.data)
    assert {
        "reward": 3.25,
        "loss": -0.5,
        "seconds": 134.2,
        "truncated": 0.25,
        "tokens": 208_000,
    }.items() <= found.items()
    assert found["train_tokens_per_s"] == pytest.approx(208_000 / 60)
    assert all(metric_of(name) for name in found) and all(metric_of(name) for name in NAMES.values())


def test_steps_per_second_is_of_the_last_twenty_steps() -> None:
    metrics = StepMetrics(rollouts=8)
    rates = [metrics.of({"time/total": seconds})["steps_per_second"] for seconds in [100.0] + [2.0] * 20]
    assert rates[0] == 0.01 and rates[1] == pytest.approx(2 / 102) and rates[-1] == 0.5
    assert "steps_per_second" not in metrics.of({"time/total": float("nan")})
