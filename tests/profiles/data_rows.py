"""Rows of the test of rules: [data] and what contradicts it."""

from __future__ import annotations

from typing import Any

import pytest

Knobs = dict[str, Any]
GRPO: Knobs = {
    "run.worker": "grpo",
    "model.path": "pocket-words",
    "model.prompt_style": "verbatim",
    "validation.suites": ("words",),
}
TWO: Knobs = {**GRPO, "data.tasks": ("a.jsonl", "b.jsonl")}
WEIGHTED: Knobs = {**TWO, "data.weights": (2.0, 1.0)}

DATA_ROWS = [
    pytest.param("weights_fit_the_files", {**TWO, "data.weights": (1.0,)}, WEIGHTED, id="a weight too few"),
    pytest.param("weights_fit_the_files", {**WEIGHTED, "data.tasks": "a.jsonl"}, TWO, id="weights for one file"),
    pytest.param("files_differ", {**GRPO, "data.tasks": ("a.jsonl", "a.jsonl")}, TWO, id="a file twice"),
    pytest.param("files_differ", {**GRPO, "data.tasks": ("a.jsonl", "")}, TWO, id="a file without a name"),
    pytest.param("several_files_need_problems", {"data.tasks": ("a.jsonl", "b.jsonl")}, TWO, id="files for self-play"),
    pytest.param(
        "several_files_need_problems", {"data.held_out": 0.1}, {**GRPO, "data.held_out": 0.1}, id="a share of self-play"
    ),
    pytest.param("weights_decide_alone", {**WEIGHTED, "grpo.sent.enabled": True}, WEIGHTED, id="weights and stages"),
    pytest.param("weights_decide_alone", {**WEIGHTED, "grpo.problems": 5}, {**TWO, "grpo.problems": 5}, id="the first"),
    pytest.param(
        "held_out_problems_are_kept",
        {**GRPO, "validation.suites": ("held-out",)},
        {**GRPO, "validation.suites": ("held-out",), "data.held_out": 0.1},
        id="a part that is empty",
    ),
]
