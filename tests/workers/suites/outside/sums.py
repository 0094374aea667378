"""A suite from outside, whole: sums of two numbers in words. Its folder is on PYTHONPATH; its name is `sums:SUMS`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from profiles.suites import PROBLEM_STYLES
from workers.suites.source import Listed


def questions(folder: Path | None) -> list:
    from workers.rng import derive
    from workers.suites.question import Question, WordProblem

    return [
        Question(
            f"sum-{left}-{right}",
            "maths",
            WordProblem(f"Tom has {left} pens. He buys {right} more. How many pens does he have?", Fraction(total)),
            derive(0, 0, "sums", number),
            listed="small" if total < 10 else "large",
        )
        for number, (left, right) in enumerate((left, right) for left in range(2, 8) for right in range(2, 8))
        for total in [left + right]
    ]


SUMS = Listed(
    about="a sum of two numbers in words; right is the same number",
    tasks=("small", "large"),
    workers=("azr", "grpo"),
    styles=PROBLEM_STYLES,
    read=questions,
)
