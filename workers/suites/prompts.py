"""The prompt of a problem of GRPO in an answer format: the same in training, previews and estimates. (pure)"""

from __future__ import annotations

from fractions import Fraction

from workers.problems.problem import Problem
from workers.suites.answer_format import AnswerFormat
from workers.suites.question import CODE, MATHS, CodeProblem, WordProblem


def prompt_of(answer_format: AnswerFormat, problem: Problem | str) -> str:
    """The verifier or the tests judge, so the answer format gets no right answer. problem: or its text alone."""
    if isinstance(problem, str):
        problem = Problem(0, 1, problem, "")
    text, messages = problem.prompt.rstrip("\n"), problem.messages
    if problem.has_tests:
        return answer_format.ask(CODE, CodeProblem(text, messages=messages))
    return answer_format.ask(MATHS, WordProblem(text, Fraction(0), messages=messages))
