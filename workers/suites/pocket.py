"""Questions of the built-in model's held-out problems, and judging them without a sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from workers.pocket.evaluation import held_out_problems
from workers.rng import derive
from workers.sandbox import Sandbox
from workers.suites.answer_format import AnswerFormat
from workers.suites.question import Question
from workers.suites.suite import Answer, Suite
from workers.tasks.judge import Correctness


class PocketSuite(Suite):
    """In the pocket style, programs are in its small language and interpreted; in other styles they are run."""

    def __init__(self, name: str, num_each: int) -> None:
        """`num_each` problems of each task: the start of one fixed sequence."""
        problems = held_out_problems(num_each)
        questions = [
            Question(f"{one.task}-{number}", one.task, one.item, derive(0, 0, "validation", number), one.task)
            for number, one in enumerate(problems)
        ]
        super().__init__(name, questions)
        self._problems = {question.question_id: one for question, one in zip(questions, problems, strict=True)}

    def needs_sandbox(self, answer_format: AnswerFormat) -> bool:
        return answer_format.name != "pocket"

    def judge(self, answers: Sequence[Answer], sandbox: Sandbox | None) -> list[Correctness]:
        if sandbox is not None:
            return super().judge(answers, sandbox)
        solved = [
            one.text is not None and self._problems[one.question.question_id].is_solved_by(one.text) for one in answers
        ]
        return [Correctness.CORRECT if is_right else Correctness.WRONG for is_right in solved]
