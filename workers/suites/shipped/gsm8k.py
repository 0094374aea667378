"""GSM8K (arXiv 2110.14168), its test split: 1,319 word problems whose answers are numbers, compared exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode, LonghaulError
from profiles.suites import PROBLEM_STYLES
from workers.suites.data_files import DataFile, read_rows
from workers.suites.source import Listed

if TYPE_CHECKING:
    from workers.suites.question import Question

FILE = DataFile(
    "gsm8k_test.jsonl",
    "https://github.com/openai/grade-school-math/blob/master/grade_school_math/data/test.jsonl",
    "MIT",
    ("question", "answer"),
)


def questions(folder: Path | None) -> list[Question]:
    """Numbered as in the file; strata by the length of the published solution, in steps."""
    from workers.rng import derive
    from workers.suites.question import Question, WordProblem
    from workers.verifiers.answers import gold_of, read_number

    found = []
    for number, row in enumerate(read_rows(FILE, folder)):
        answer = read_number(gold_of(row["answer"]))
        if answer is None:
            raise LonghaulError(
                f"{FILE.name} line {number + 1}: no number follows #### in its answer",
                kept="everything; nothing was asked yet",
                next_command=f"download {FILE.url} again",
                exit_code=ExitCode.INPUT,
            )
        name = f"test_{number}"
        steps = min(8, row["answer"].count("<<"))
        found.append(
            Question(name, "maths", WordProblem(row["question"], answer), derive(0, 0, f"gsm8k/{name}"), str(steps))
        )
    return found


SUITE = Listed(
    about="a word problem of the test split; right is the same number, exactly",
    tasks=("maths",),
    workers=("azr", "grpo", "verl"),
    styles=PROBLEM_STYLES,
    file=FILE,
    read=questions,
)
