"""The pictures of the documents, drawn from the files that benchmarks write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.picture import main
from profiles.task_kinds import SHOWN

TASK = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "sampled_accuracy": 0.4, "worked_share": 0.9, "mean_tokens": 40.0}
SVG = "{http://www.w3.org/2000/svg}"


def curve(*accuracies: float) -> dict[str, Any]:
    points = []
    for number, accuracy in enumerate(accuracies):
        mean = TASK | {"accuracy": accuracy, "low": accuracy - 0.05, "high": accuracy + 0.05}
        metrics = {task: TASK for task in SHOWN} | {"mean": mean}
        points.append({"step": 40 * number, "training_s": 60.0 * number, "metrics": metrics})
    return {"points": points}


def drawn(curves: dict[str, Any], tmp_path: Path) -> ElementTree.Element:
    (tmp_path / "curves.json").write_text(json.dumps(curves))
    assert main([str(tmp_path / "curves.json"), str(tmp_path / "out.svg")]) == 0
    return ElementTree.parse(tmp_path / "out.svg").getroot()


def classes(root: ElementTree.Element, tag: str) -> list[str]:
    return [one.get("class", "") for one in root.iter(f"{SVG}{tag}")]


def test_runs_of_the_pocket_profile_have_accuracy_and_length_beside_each_other(tmp_path: Path) -> None:
    root = drawn({"pocket-0": curve(0.1, 0.9), "pocket-1": curve(0.1, 0.8)}, tmp_path)
    lines = classes(root, "polyline")
    assert lines.count("line greedy") == lines.count("line sampled") == 2
    assert all(lines.count(f"line {task}") == 2 for task in SHOWN)


def test_runs_on_a_gpu_are_drawn_beside_random_rewards_with_their_intervals(tmp_path: Path) -> None:
    kinds = {
        "grpo": {"0": curve(0.1, 0.9)},
        "grpo-random": {"0": curve(0.1, 0.1)},
        "self-play": {"0": curve(0.1, 0.5), "1": curve(0.1, 0.6)},
        "self-play-random": {"0": curve(0.1, 0.1), "1": {"points": []}},
    }
    root = drawn(kinds, tmp_path)
    assert sorted(classes(root, "polyline")) == ["line random"] * 2 + ["line rewarded"] * 3
    assert sorted(classes(root, "polygon")) == ["band random"] * 2 + ["band rewarded"] * 3
    titles = [one.text or "" for one in root.iter(f"{SVG}text") if one.get("class") == "title"]
    assert [title.partition(":")[0] for title in titles] == ["grpo", "self-play"]


def test_a_higher_accuracy_is_drawn_higher(tmp_path: Path) -> None:
    root = drawn({"grpo": {"0": curve(0.1, 0.9)}, "grpo-random": {"0": curve(0.2, 0.2)}}, tmp_path)
    rewarded, random = (
        [float(pair.partition(",")[2]) for pair in (one.get("points") or "").split()]
        for one in root.iter(f"{SVG}polyline")
    )
    assert rewarded[0] > rewarded[1] and random[0] == pytest.approx(random[1])
    assert rewarded[1] < random[1] < rewarded[0]
