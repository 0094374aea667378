"""A suite: named questions, their prompts, and how answers to them are judged.

Nothing of an answer runs in this process: programs and their inputs go to the sandbox, the rest is compared as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

from profiles.errors import ExitCode, LonghaulError
from workers.rng import derive
from workers.sandbox import Sandbox
from workers.suites.answer_format import AnswerFormat
from workers.suites.data_files import short_hash
from workers.suites.question import CODE, MATHS, CodeProblem, Question, WordProblem
from workers.tasks.entry import make_entry
from workers.tasks.items import HiddenProgram, Triplet
from workers.tasks.judge import Answer as Claim
from workers.tasks.judge import Correctness, Judge
from workers.tasks.kinds.registry import kind_of
from workers.verifiers.answers import read_number
from workers.verifiers.programs import Limit, judge_programs
from workers.verifiers.verify import judge

TEST_S = 5.0
"""CPU seconds of each test of a program, whatever a profile grants in training: scores of runs stay comparable."""


@dataclass(frozen=True)
class Answer:
    """One completion to one question; text None if malformed."""

    question: Question
    text: str | None


class Suite:
    """A named list of questions. available: the total, if these are a subset."""

    def __init__(self, name: str, questions: Sequence[Question], available: int = 0) -> None:
        self.name, self.questions = name, tuple(questions)
        self.available = max(available, len(self.questions))

    @property
    def is_rewarded(self) -> bool:
        """Whether the run's own reward judges its answers: those of all its questions, or of none."""
        return any(question.rewarded is not None for question in self.questions)

    def reseeded(self, seed: int) -> Self:
        """The same suite with other random streams; 0: unchanged."""
        if seed:
            self.questions = tuple(replace(one, seed=derive(one.seed, seed, "evaluation")) for one in self.questions)
        return self

    def needs_sandbox(self, answer_format: AnswerFormat) -> bool:
        """Whether judging requires running a model's programs or inputs. A reward has a sandbox of its own."""
        if self.is_rewarded:
            return False
        kinds = {question.kind for question in self.questions} - {MATHS}
        return any(kind == CODE or kind_of(kind).runs_answers for kind in kinds)

    def prompts(self, answer_format: AnswerFormat) -> list[str]:
        """One per question, in order. Raises LonghaulError (INPUT) if the format has no words for a kind."""
        if silent := sorted({question.kind for question in self.questions} - answer_format.kinds):
            raise LonghaulError(
                f"the prompt style {answer_format.name} cannot ask the suite {self.name} "
                f"(no words for {', '.join(silent)})",
                kept="everything; nothing was asked yet",
                next_command="python -m orchestrator evaluate --style plain ...",
                exit_code=ExitCode.INPUT,
            )
        return [answer_format.ask(question.kind, question.item) for question in self.questions]

    def fingerprint(self, answer_format: AnswerFormat) -> str:
        """Equal only if every question, prompt and right answer is the same."""
        lines = [
            f"{question.question_id}\0{question.seed}\0{question.gold}\0{prompt}"
            for question, prompt in zip(self.questions, self.prompts(answer_format), strict=True)
        ]
        return short_hash("\0\0".join(lines))

    def judge(self, answers: Sequence[Answer], sandbox: Sandbox | None) -> list[Correctness]:
        """A verdict for each, in order, if the reward of a run does not judge them. sandbox: None if `needs_sandbox` is
        False."""
        verdicts = [_by_number(answer) for answer in answers]
        left = [(place, answer) for place, answer in enumerate(answers) if verdicts[place] is None]
        tested = [place for place, answer in left if answer.question.kind == CODE]
        run = [place for place, answer in left if answer.question.kind != CODE]
        found = dict(zip(run, _by_running([answers[place] for place in run], sandbox) if run else [], strict=True))
        if tested:
            found |= zip(tested, _by_tests([answers[place] for place in tested], sandbox), strict=True)
        return [found[place] if verdict is None else verdict for place, verdict in enumerate(verdicts)]


def _by_number(answer: Answer) -> Correctness | None:
    """The verdict if no program needs to run; otherwise None."""
    if answer.text is None:
        return Correctness.WRONG
    item = answer.question.item
    if isinstance(item, WordProblem) and item.gold:
        # In a mark of its own, so that the verifier compares all of the answer that the format found.
        is_right = judge(item.gold, f"#### {' '.join(answer.text.split())}").correct
        return Correctness.CORRECT if is_right else Correctness.WRONG
    if isinstance(item, WordProblem):
        is_right = read_number(answer.text) == item.answer
        return Correctness.CORRECT if is_right else Correctness.WRONG
    return None


def _by_tests(answers: Sequence[Answer], sandbox: Sandbox | None) -> list[Correctness]:
    """Run programs on their tests. They may import more than tasks of self-play may (docs/sandbox.md)."""
    assert sandbox is not None
    asked = []
    for answer in answers:
        assert isinstance(answer.question.item, CodeProblem) and answer.text is not None
        asked.append((answer.question.item.program(answer.text), answer.question.item.tests))
    limit = Limit(TEST_S, sandbox.limits.memory_mb)
    is_able = sandbox.limits.scripts
    with nullcontext(sandbox) if is_able else sandbox.with_scripts() as able:
        judged = judge_programs(able, asked, limit)
    unknown, right, wrong = Correctness.UNKNOWN, Correctness.CORRECT, Correctness.WRONG
    return [unknown if one.is_lost else right if one.is_right else wrong for one in judged]


def _by_running(answers: Sequence[Answer], sandbox: Sandbox | None) -> list[Correctness]:
    """Judge as self-play does: by comparing literals, or by running programs on literals."""
    claims = []
    for answer in answers:
        item = answer.question.item
        assert isinstance(item, Triplet | HiddenProgram) and answer.question.kind != MATHS
        several = isinstance(item, HiddenProgram)
        inputs = item.inputs if isinstance(item, HiddenProgram) else (item.input,)
        outputs = item.outputs if isinstance(item, HiddenProgram) else (item.output,)
        kind = answer.question.kind
        # With one pair, the published input may be any expression: it is shown, never used as a key.
        entry = make_entry(kind, item.program, inputs if several else ("0",), outputs, step=0, source="import")
        claims.append(Claim(entry, answer.text))
    judge = Judge(sandbox, None)  # type: ignore[arg-type]  # not used if no answer is run
    return judge.judge(claims)[0]
