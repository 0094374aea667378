"""HumanEval (arXiv 2107.03374): 164 functions to complete from their heads and docstrings, judged by hidden tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiles.suites import PROBLEM_STYLES
from workers.suites.data_files import DataFile, read_rows
from workers.suites.source import Listed

if TYPE_CHECKING:
    from workers.suites.question import Question

FILE = DataFile(
    "HumanEval.jsonl",
    "https://github.com/openai/human-eval/blob/master/data/HumanEval.jsonl.gz",
    "MIT",
    ("task_id", "prompt", "test", "entry_point"),
)
WORDS = "Complete this Python function. Give the whole function.\n\n```python\n{prompt}\n```"


def questions(folder: Path | None) -> list[Question]:
    """In the order of the file. Raises LonghaulError (INPUT) for a prompt without the head of its function."""
    from workers.rng import derive
    from workers.suites.code_problems import bad_line, tests_of_line
    from workers.suites.question import CODE, CodeProblem, Question

    found = []
    for line, row in enumerate(read_rows(FILE, folder), start=1):
        name, prompt, entry = row["task_id"], row["prompt"], row["entry_point"]
        if f"def {entry}" not in prompt:
            raise bad_line(FILE, line, f"its prompt does not begin the function {entry}")
        tests = tests_of_line(FILE, line, row)
        item = CodeProblem(WORDS.format(prompt=prompt.strip("\n")), tests, start=prompt, entry=entry)
        found.append(Question(name, CODE, item, derive(0, 0, f"humaneval/{name}")))
    return found


SUITE = Listed(
    about="a Python function from its docstring; right is one that passes the published tests",
    tasks=("code",),
    workers=("azr", "grpo"),
    styles=PROBLEM_STYLES,
    file=FILE,
    read=questions,
)
