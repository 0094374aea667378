"""CRUXEval (arXiv 2401.03065): 800 short programs, each with an input and its output; two suites ask about them.

An input is right if the program returns the published output for it. As in self-play, it must be a list of literals. 13
of the published inputs are other expressions (`dict(a=1)`, a lambda); prompts show them as published.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workers.suites.data_files import DataFile, read_rows

if TYPE_CHECKING:
    from workers.suites.question import Question
    from workers.tasks.items import Task

FILE = DataFile(
    "cruxeval.jsonl",
    "https://github.com/facebookresearch/cruxeval/blob/main/data/cruxeval.jsonl",
    "MIT",
    ("id", "code", "input", "output"),
)


def questions(suite: str, kind: Task, folder: Path | None) -> list[Question]:
    """suite: names the samples' random streams. kind: what is asked for."""
    from workers.rng import derive
    from workers.suites.question import Question
    from workers.tasks.items import Triplet

    return [
        Question(
            row["id"],
            kind,
            Triplet(row["code"], row["input"], row["output"], 0, "held-out"),
            seed=derive(0, 0, f"{suite}/{row['id']}"),
            stratum=stratum_of(row["code"], row["output"]),
        )
        for row in read_rows(FILE, folder)
    ]


def stratum_of(code: str, output: str) -> str:
    """Length of the program in lines (three classes), and its output's first character, which hints at the type.
    (pure)"""
    lines = len(code.splitlines())
    length = "short" if lines <= 5 else "middle" if lines <= 9 else "long"
    kinds = {"'": "text", '"': "text", "[": "list", "{": "dict", "(": "tuple", "T": "bool", "F": "bool"}
    return f"{length} {kinds.get(output[:1], 'other')}"
