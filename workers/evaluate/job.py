"""One evaluation from its spec to its scores: what is finished is read back, the rest is asked in batches.

Nothing heavy is imported here: where all is finished no model is loaded, and zygotes start before the tensor library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode, LonghaulError
from workers.environment import set_environment
from workers.evaluate.answer_file import AnswerFile
from workers.failures import is_out_of_memory
from workers.line_contract import Answered, EvaluationSpec, Loading, Note, Scores, SuiteBegun
from workers.lines import Say
from workers.models.files import ModelFileError
from workers.sandbox import Sandbox
from workers.sandbox.limits import limits_of
from workers.suites.answer_format import AnswerFormat
from workers.suites.answer_formats import format_of
from workers.suites.data_files import data_folder
from workers.suites.question import Question
from workers.suites.registry import load_suites
from workers.suites.scoring import Outcome, metrics_of
from workers.suites.suite import Suite

if TYPE_CHECKING:
    from workers.suites.asking import Examinee, QuestionResult


@dataclass
class Paper:
    """A suite and how far it is."""

    suite: Suite
    fingerprint: str
    file: AnswerFile
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def left(self) -> list[Question]:
        return [question for question in self.suite.questions if question.question_id not in self.outcomes]


def evaluate(spec: EvaluationSpec, say: Say) -> None:
    """Every suite of the spec, resumed where an earlier process left it. Raises LonghaulError."""
    suites = [suite.reseeded(spec.seed) for suite in load_suites(spec.suites, data_folder(spec.data), spec.examples)]
    with _advising(spec, "the same command with --style plain"):
        answer_format = format_of(spec.style, spec.profile, Path(spec.model))
    papers = [_open(spec, suite, answer_format, say) for suite in suites]
    open_suites = [paper.suite for paper in papers if paper.left]
    needs_sandbox = any(suite.needs_sandbox(answer_format) for suite in open_suites)
    knobs = spec.profile.sandbox
    with Sandbox(limits_of(knobs), knobs.jobs) if needs_sandbox else nullcontext() as sandbox:
        # Made when the first question is left: a finished evaluation needs no model.
        examinee = _examinee(spec, answer_format, open_suites, say) if open_suites else None
        for paper in papers:
            if paper.left:
                assert examinee is not None
                _answer(spec, paper, examinee, sandbox if paper.suite.needs_sandbox(answer_format) else None, say)
            outcomes = [paper.outcomes[question.question_id] for question in paper.suite.questions]
            metrics = metrics_of(outcomes, greedy=spec.temperature == 0, ks=spec.ks)
            say(Scores(paper.suite.name, metrics))
            paper.file.close()


@contextmanager
def _advising(spec: EvaluationSpec, next_command: str = "") -> Iterator[None]:
    """Bad input is told by code that knows of runs only. next_command: what helps here, if not what that code says.

    Of a bad file it is always to look at the model's directory: no option puts it right.
    """
    try:
        yield
    except LonghaulError as error:
        if error.exit_code != ExitCode.INPUT:
            raise
        if isinstance(error, ModelFileError):
            next_command = f"ls -l {spec.model}   (put right what is wrong with it), then the same command"
        raise LonghaulError(
            error.what,
            kept="everything; nothing was asked",
            next_command=next_command or error.next_command,
            exit_code=ExitCode.INPUT,
        ) from error


def _open(spec: EvaluationSpec, suite: Suite, answer_format: AnswerFormat, say: Say) -> Paper:
    """A file of its own for each set of questions and prompts: what was asked otherwise is not mixed in."""
    fingerprint = suite.fingerprint(answer_format)
    file = AnswerFile(Path(spec.folder) / f"{suite.name.replace(':', '.')}-{fingerprint}.jsonl")
    paper = Paper(suite, fingerprint, file)
    paper.outcomes = file.outcomes(question.question_id for question in suite.questions)
    say(SuiteBegun(suite.name, fingerprint, len(suite.questions)))
    if paper.outcomes:
        _tell(paper, list(paper.outcomes.values()), say)
    return paper


def _tell(paper: Paper, outcomes: Sequence[Outcome], say: Say) -> None:
    rows = [(one.question_id, one.task, len(one.right), sum(one.right)) for one in outcomes]
    say(Answered(paper.suite.name, len(paper.outcomes), rows))


def _examinee(spec: EvaluationSpec, answer_format: AnswerFormat, suites: Sequence[Suite], say: Say) -> Examinee:
    say(Loading())
    set_environment()
    with _advising(spec):
        return _opened(spec, answer_format, suites, say)


def _opened(spec: EvaluationSpec, answer_format: AnswerFormat, suites: Sequence[Suite], say: Say) -> Examinee:
    from workers.evaluate.examinee import open_examinee
    from workers.models.load import Tokenizer

    tokenizer = Tokenizer(Path(spec.model))
    prompts = [prompt for suite in suites for prompt in suite.prompts(answer_format)]
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    for prompt, ids in zip(prompts, encoded, strict=True):
        if tokenizer.decode(ids).split() != prompt.split():
            say(Note("the tokenizer does not reproduce the prompts exactly: is it meant for such text?"))
            break
    return open_examinee(spec, answer_format, max(map(len, encoded)))


def _answer(spec: EvaluationSpec, paper: Paper, examinee: Examinee, sandbox: Sandbox | None, say: Say) -> None:
    """Ask what is left, the longest prompts first: what does not fit into memory shows at once."""
    from workers.rollout.engine import Sampling
    from workers.suites.asking import ask

    sampling = Sampling(
        temperature=spec.temperature or 1.0,
        max_new_tokens=spec.max_new_tokens,
        greedy=spec.temperature == 0,
        stop=examinee.answer_format.stop,
    )
    by_length = sorted(paper.left, key=lambda one: len(examinee.answer_format.ask(one.kind, one.item)), reverse=True)
    for batch in _batches(
        by_length,
        max(1, spec.batch_size // spec.samples),
        lambda questions: ask(examinee, paper.suite, questions, sampling, spec.samples, sandbox),
        examinee.engine,
        say,
    ):
        paper.file.add(batch)
        outcomes = [one.outcome for one in batch]
        paper.outcomes |= {one.question_id: one for one in outcomes}
        _tell(paper, outcomes, say)
    if too_long := sum(one.too_long for one in paper.outcomes.values()):
        say(
            Note(
                f"{too_long} prompts of {paper.suite.name} do not fit the model's {examinee.max_positions} "
                f"positions beside {spec.max_new_tokens} new tokens; they count as wrong"
            )
        )


def _batches(
    questions: Sequence[Question],
    size: int,
    work: Callable[[Sequence[Question]], list[QuestionResult]],
    engine: object,
    say: Say,
) -> Iterator[list[QuestionResult]]:
    """`work` on all questions, `size` at a time; with fewer rollouts side by side after running out of memory.

    Raises LonghaulError (CUDA_OOM) where a single rollout does not fit.
    """
    from workers.rollout.fewer_rows import with_fewer_rows

    for place in range(0, len(questions), size):
        try:
            done = with_fewer_rows(engine, partial(work, questions[place : place + size]), lambda text: say(Note(text)))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise LonghaulError(
                "one answer does not fit into the GPU's memory",
                kept="every answer so far",
                next_command="the same command with a smaller --max-new-tokens",
                exit_code=ExitCode.CUDA_OOM,
            ) from error
        yield done
