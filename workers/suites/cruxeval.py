"""CRUXEval (arXiv 2401.03065): 800 short programs, asked for an input (cruxeval-i) or the output (cruxeval-o).

Right is, for an input, whatever gives the published output when the program is run; only lists of literals are taken,
as in self-play. 13 of the published inputs are expressions (`dict(a=1)`, a lambda, none): these are shown as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from workers.rng import derive
from workers.suites.data_files import CRUXEVAL, read_rows
from workers.suites.question import Question
from workers.tasks.kinds import Triplet


def input_questions(folder: Path | None) -> list[Question]:
    """Abduction: the program and its output are shown."""
    return _questions("cruxeval-i", "abd", folder)


def output_questions(folder: Path | None) -> list[Question]:
    """Deduction: the program and its input are shown."""
    return _questions("cruxeval-o", "ded", folder)


def _questions(suite: str, kind: Literal["abd", "ded"], folder: Path | None) -> list[Question]:
    return [
        Question(
            row["id"],
            kind,
            Triplet(row["code"], row["input"], row["output"], 0, "held-out"),
            seed=derive(0, 0, f"{suite}/{row['id']}"),
            stratum=stratum_of(row["code"], row["output"]),
        )
        for row in read_rows(CRUXEVAL, folder)
    ]


def stratum_of(code: str, output: str) -> str:
    """Length of the program in lines (three classes) and the first sign of its output, which tells its type. (pure)"""
    lines = len(code.splitlines())
    length = "short" if lines <= 5 else "middle" if lines <= 9 else "long"
    kinds = {"'": "text", '"': "text", "[": "list", "{": "dict", "(": "tuple", "T": "bool", "F": "bool"}
    return f"{length} {kinds.get(output[:1], 'other')}"
