"""Small data folders and questions for the tests of suites."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest

from workers.suites.question import Question, WordProblem
from workers.tasks.items import HiddenProgram, Triplet

DATA = os.environ.get("LONGHAUL_DATA", "")
needs_data = pytest.mark.skipif(
    not (Path(DATA) / "cruxeval.jsonl").is_file() or not DATA,
    reason="LONGHAUL_DATA names no folder with the data files",
)

DOUBLE = "def f(a):\n    return a * 2"
PROGRAMS = (DOUBLE, "def f(a, b):\n    return a + b", "def f(a):\n    return sorted(a)", "def f(a):\n    return len(a)")
CRUXEVAL_ROWS = (
    (PROGRAMS[0], "3", "6"),
    (PROGRAMS[1], "'x', 'y'", "'xy'"),
    (PROGRAMS[2], "[3, 1]", "[1, 3]"),
    (PROGRAMS[3], "dict(a=1)", "1"),
)
GSM8K_ROWS = (
    ("Two and two?", "2+2=<<2+2=4>>4\n#### 4"),
    ("A thousand pounds and a half?", "It is <<1000+0.5=1000.5>>1000.5\n#### 1,000.5"),
)


def write_data(folder: Path) -> Path:
    """A data folder with four programs and two word problems."""
    folder.mkdir(parents=True, exist_ok=True)
    crux = [
        {"code": code, "input": given, "output": wanted, "id": f"sample_{number}"}
        for number, (code, given, wanted) in enumerate(CRUXEVAL_ROWS)
    ]
    gsm = [{"question": question, "answer": answer} for question, answer in GSM8K_ROWS]
    for name, rows in (("cruxeval.jsonl", crux), ("gsm8k_test.jsonl", gsm)):
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return folder


def triplet(code: str = DOUBLE, given: str = "3", wanted: str = "6") -> Triplet:
    return Triplet(code, given, wanted, 0, "held-out")


ABD = Question("a", "abd", triplet(), 1)
DED = Question("d", "ded", triplet(), 2)
IND = Question(
    "i", "ind", HiddenProgram(DOUBLE, ("1", "2", "'x'", "5"), ("2", "4", "'xx'", "10"), "", 0, "held-out"), 3
)
MATHS = Question("m", "maths", WordProblem("Two and two?", Fraction(4)), 4)
