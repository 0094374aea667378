"""The store that stands for a very long run is one that every reader takes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.large_store import large_store
from orchestrator.cli import main
from profiles.metrics import metric_of
from state.opening import unsound
from state.reader import Reader


def test_a_made_run_is_sound_and_reports_declared_metrics_and_answers(tmp_path: Path) -> None:
    run = large_store(tmp_path / "made", steps=200, cycles=4)
    assert unsound(run.store) == ""
    with closing(Reader.open(run)) as reader:
        history, names = reader.history(), reader.metric_names()
        series = reader.series(["accuracy"], 4)
    assert history.step == 200 and len(names) > 40 and [metric_of(name) for name in names]
    assert history.current is not None and history.current.validations[0].answers
    means = [one.mean for one in series.metrics["accuracy"] if one is not None]
    assert means[0] == min(means) < 0.8 < means[-1]


def test_commands_read_it(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        large_store(tmp_path / name, steps=200, cycles=4, seed=seed)
    for words in (
        ["status", "--run", "a"],
        ["explain", "--run", "a"],
        ["report", "a"],
        ["report", "a", "b"],
        ["compare", "a", "b"],
    ):
        assert main([*words, "--runs", str(tmp_path)]) == 0, words
