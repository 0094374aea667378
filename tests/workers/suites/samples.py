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
SETUP = "class Node:\n    value = 5\ntree = Node()"
GSM8K_ROWS = (
    ("Two and two?", "2+2=<<2+2=4>>4\n#### 4"),
    ("A thousand pounds and a half?", "It is <<1000+0.5=1000.5>>1000.5\n#### 1,000.5"),
)


HUMANEVAL_ROWS = (
    (
        'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """The sum."""\n',
        "total",
        "    return sum(xs)\n",
        "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
    ),
    (
        'def once(x):\n    return x\n\n\ndef twice(x):\n    """Twice what `once` gives."""\n',
        "twice",
        "    return 2 * once(x)\n",
        "def check(candidate):\n    assert candidate(4) == 8\n",
    ),
)
MBPP_ROWS = (
    (11, "Write a function to add two numbers.", "def add(a, b):\r\n  return a + b", ["assert add(1, 2) == 3"] * 3, ""),
    (12, "Write a function for the root.", "def root(t):\n    return t.value", ["assert root(tree) == 5"], SETUP),
    (601, "Write a function of the training split.", "def f():\n    return 1", ["assert f() == 1"], ""),
)
"""As published: also a line that the suite does not ask."""


def write_data(folder: Path) -> Path:
    """A data folder with four programs to read, two word problems, and four programs to write."""
    folder.mkdir(parents=True, exist_ok=True)
    crux = [
        {"code": code, "input": given, "output": wanted, "id": f"sample_{number}"}
        for number, (code, given, wanted) in enumerate(CRUXEVAL_ROWS)
    ]
    gsm = [{"question": question, "answer": answer} for question, answer in GSM8K_ROWS]
    human = [
        {
            "task_id": f"HumanEval/{number}",
            "prompt": prompt,
            "entry_point": entry,
            "canonical_solution": solution,
            "test": test,
        }
        for number, (prompt, entry, solution, test) in enumerate(HUMANEVAL_ROWS)
    ]
    mbpp = [
        {
            "text": text,
            "code": code,
            "task_id": number,
            "test_setup_code": setup,
            "test_list": tests,
            "challenge_test_list": [],
        }
        for number, text, code, tests, setup in MBPP_ROWS
    ]
    files = {"cruxeval.jsonl": crux, "gsm8k_test.jsonl": gsm, "HumanEval.jsonl": human, "mbpp.jsonl": mbpp}
    for name, rows in files.items():
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
