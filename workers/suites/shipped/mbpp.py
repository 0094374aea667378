"""MBPP (arXiv 2108.07732), its test split: 500 short programs from a sentence and three tests, which prompts show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiles.suites import PROBLEM_STYLES
from workers.suites.data_files import DataFile, read_rows
from workers.suites.source import Listed

if TYPE_CHECKING:
    from workers.suites.question import Question

FILE = DataFile(
    "mbpp.jsonl",
    "https://github.com/google-research/google-research/blob/master/mbpp/mbpp.jsonl",
    "CC-BY-4.0",
    ("text", "test_setup_code"),
    ("task_id", "test_list", "challenge_test_list"),
)
TEST_SPLIT = range(11, 511)
"""Values of `task_id`, as published; 1 to 10 are for prompts, 511 to 600 for validation, 601 to 974 for training."""


def questions(folder: Path | None) -> list[Question]:
    """In the order of the file. The harder `challenge_test_list` does not count, as in published scores.

    Raises LonghaulError (INPUT) for a file without the test split.
    """
    from workers.problems.test_rows import prompt_of
    from workers.rng import derive
    from workers.suites.code_problems import bad_line, tests_of_line
    from workers.suites.question import CODE, CodeProblem, Question

    found = []
    for line, row in enumerate(read_rows(FILE, folder), start=1):
        if row["task_id"] not in TEST_SPLIT:
            continue
        name = f"mbpp_{row['task_id']}"
        tests = tests_of_line(FILE, line, {**row, "challenge_test_list": []})
        item = CodeProblem(prompt_of(row) or "", tests)
        found.append(Question(name, CODE, item, derive(0, 0, f"mbpp/{name}")))
    if not found:
        raise bad_line(FILE, 1, f"no line has a task_id of the test split ({TEST_SPLIT[0]} to {TEST_SPLIT[-1]})")
    return found


SUITE = Listed(
    about="a short Python program (test split); right is one that passes the three tests that the prompt shows",
    tasks=("code",),
    workers=("azr", "grpo"),
    styles=PROBLEM_STYLES,
    file=FILE,
    read=questions,
)
