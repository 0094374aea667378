"""GSM8K (arXiv 2110.14168), its test split: 1,319 word problems whose answers are numbers, compared exactly."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers.rng import derive
from workers.suites.data_files import GSM8K_TEST, read_rows
from workers.suites.question import Question, WordProblem
from workers.verifiers.answers import gold_of, read_number


def questions(folder: Path | None) -> list[Question]:
    """Numbered as in the file; strata by the length of the published solution, in steps."""
    found = []
    for number, row in enumerate(read_rows(GSM8K_TEST, folder)):
        answer = read_number(gold_of(row["answer"]))
        if answer is None:
            raise LonghaulError(
                f"{GSM8K_TEST.name} line {number + 1}: no number follows #### in its answer",
                kept="everything; nothing was asked yet",
                next_command=f"download {GSM8K_TEST.url} again",
                exit_code=ExitCode.INPUT,
            )
        name = f"test_{number}"
        steps = min(8, row["answer"].count("<<"))
        found.append(
            Question(name, "maths", WordProblem(row["question"], answer), derive(0, 0, f"gsm8k/{name}"), str(steps))
        )
    return found
