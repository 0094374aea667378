"""One evaluation from its spec to its scores: reads back what is finished, and asks the rest in batches.

A command's worker asks all questions, or collects what the jobs of a scheduler have answered; a job asks its share.
Imports nothing heavy: if everything is finished no model is loaded, and zygotes start before the tensor library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.evaluation_array import ShardDir, arrays_in
from workers.environment import set_environment
from workers.evaluate.answer_file import AnswerFile, answers_in
from workers.evaluate.shares import batches_of, share_of
from workers.failures import is_out_of_memory
from workers.line_contract import Answered, EvaluationSpec, Left, Loading, Note, Scores, SuiteBegun
from workers.lines import Say
from workers.models.files import ModelFileError
from workers.sandbox import Sandbox
from workers.sandbox.limits import limits_of
from workers.suites.answer_format import AnswerFormat, as_trained
from workers.suites.answer_formats import format_of
from workers.suites.data_files import data_folder
from workers.suites.question import Question
from workers.suites.registry import load_suites
from workers.suites.scoring import Outcome, metrics_of
from workers.suites.suite import Suite

if TYPE_CHECKING:
    from workers.suites.asking import Examinee, QuestionResult
    from workers.suites.run_reward import RunReward

Batch = list[Question]


@dataclass
class Paper:
    """A suite and its progress. batches: all its questions, in the order in which one worker asks them."""

    suite: Suite
    fingerprint: str
    file: AnswerFile
    batches: list[Batch]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        return [question.question_id for question in chain(*self.batches)]

    @property
    def is_complete(self) -> bool:
        return len(self.outcomes) == len(self.suite.questions)

    def left_of(self, batches: Iterable[Batch]) -> list[Batch]:
        """The batches without answered questions; no empty ones."""
        rest = ([one for one in batch if one.question_id not in self.outcomes] for batch in batches)
        return [batch for batch in rest if batch]

    def take(self, answers: Mapping[str, QuestionResult]) -> None:
        self.outcomes |= {name: one.outcome for name, one in answers.items()}


def evaluate(spec: EvaluationSpec, say: Say) -> None:
    """Every suite of the spec, resumed from earlier processes and jobs. Raises LonghaulError.

    A spec with shards: asks nothing, collects what their jobs have answered, and says what each has left.
    """
    suites, answer_format = _loaded(spec)
    papers = [_open(spec, suite, answer_format, Path(spec.folder), say) for suite in suites]
    for paper in papers:
        _collect(paper, Path(spec.folder))
        _tell_found(paper, say)
    if spec.shards:
        say(Left([_number_left(papers, number, spec.shards) for number in range(spec.shards)]))
    asked = [[] if spec.shards else paper.batches for paper in papers]
    for paper in _answered(spec, papers, asked, answer_format, say):
        if paper.is_complete:
            outcomes = [paper.outcomes[question.question_id] for question in paper.suite.questions]
            say(Scores(paper.suite.name, metrics_of(outcomes, greedy=spec.temperature == 0, ks=spec.ks)))


def ask_share(spec: EvaluationSpec, directory: ShardDir, restart: int, say: Say) -> None:
    """The questions of one shard, into a file of this start of its job. Raises LonghaulError."""
    suites, answer_format = _loaded(spec)
    earlier = [Path(spec.folder), *directory.all_answers()]
    durable.make_dir(directory.answers(restart))
    papers = [_open(spec, suite, answer_format, directory.answers(restart), say) for suite in suites]
    for paper in papers:
        _refuse_others(spec, paper)
        paper.take(answers_in((folder / paper.file.path.name for folder in earlier), paper.ids))
    for _ in _answered(spec, papers, _shares(papers, directory.number, spec.shards), answer_format, say):
        pass


def _loaded(spec: EvaluationSpec) -> tuple[list[Suite], AnswerFormat]:
    known = spec.profile if spec.profile.data.held_out else None
    found = load_suites(spec.suites, data_folder(spec.data), spec.examples, profile=known)
    suites = [suite.reseeded(spec.seed) for suite in found]
    with _advising(spec, "the same command with --style plain"):
        answer_format = format_of(spec.style, spec.profile, Path(spec.model))
    if any(suite.is_rewarded for suite in suites):
        as_trained(answer_format)
    return suites, answer_format


def _open(spec: EvaluationSpec, suite: Suite, answer_format: AnswerFormat, folder: Path, say: Say) -> Paper:
    """A file of its own for each set of questions and prompts, so that different ones never mix."""
    fingerprint = suite.fingerprint(answer_format)
    file = AnswerFile(folder / f"{suite.name.replace(':', '.')}-{fingerprint}.jsonl")
    size = max(1, spec.batch_size // spec.samples)
    batches = batches_of(suite.questions, size, lambda one: len(answer_format.ask(one.kind, one.item)))
    say(SuiteBegun(suite.name, fingerprint, len(suite.questions)))
    return Paper(suite, fingerprint, file, batches)


def _refuse_others(spec: EvaluationSpec, paper: Paper) -> None:
    """Raises LonghaulError (INPUT) if this node has other questions than the command that submitted the job."""
    if spec.fingerprints.get(paper.suite.name) != paper.fingerprint:
        raise LonghaulError(
            f"the questions of the suite {paper.suite.name} on this node differ from those of the command",
            kept="every answer so far",
            next_command="the same command with --data in a folder that all nodes share",
            exit_code=ExitCode.INPUT,
        )


def _collect(paper: Paper, folder: Path) -> None:
    """Read the answers so far. Write those of jobs into the file, all in the order in which one worker asks."""
    jobs = (start for array in arrays_in(folder) for shard in array.shards() for start in shard.all_answers())
    own = answers_in([paper.file.path], paper.ids)
    found = answers_in((start / paper.file.path.name for start in jobs), paper.ids) | own
    if len(found) > len(own):
        paper.file.replace(found[name] for name in paper.ids if name in found)
    paper.take(found)


def _shares(papers: Sequence[Paper], number: int, shards: int) -> list[list[Batch]]:
    """The batches of each paper that belong to a shard."""
    mine = share_of([(place, batch) for place, paper in enumerate(papers) for batch in paper.batches], number, shards)
    return [[batch for owner, batch in mine if owner == place] for place in range(len(papers))]


def _number_left(papers: Sequence[Paper], number: int, shards: int) -> int:
    shares = zip(papers, _shares(papers, number, shards), strict=True)
    return sum(len(batch) for paper, share in shares for batch in paper.left_of(share))


def _answered(
    spec: EvaluationSpec, papers: Sequence[Paper], asked: Sequence[list[Batch]], answer_format: AnswerFormat, say: Say
) -> Iterator[Paper]:
    """Each paper, once its batches in `asked` are answered."""
    left = [paper.left_of(batches) for paper, batches in zip(papers, asked, strict=True)]
    is_sandboxed = [paper.suite.needs_sandbox(answer_format) for paper in papers]
    knobs = spec.profile.sandbox
    needs_sandbox = any(batches and needed for batches, needed in zip(left, is_sandboxed, strict=True))
    is_rewarded = any(batches and paper.suite.is_rewarded for paper, batches in zip(papers, left, strict=True))
    with (
        Sandbox(limits_of(knobs), knobs.jobs) if needs_sandbox else nullcontext() as sandbox,
        _reward(spec, papers[0].file.path.parent) if is_rewarded else nullcontext() as reward,
    ):
        # Created when the first question is left: a finished evaluation needs no model. The same for every share and
        # after a kill: the room that an engine keeps for prompts may decide how its kernels round.
        examinee = _examinee(spec, answer_format, [paper.suite for paper in papers], say) if any(left) else None
        for paper, batches, needed in zip(papers, left, is_sandboxed, strict=True):
            if batches:
                assert examinee is not None
                _answer(spec, paper, batches, examinee, sandbox if needed else None, reward, say)
            yield paper
            paper.file.close()


@contextmanager
def _advising(spec: EvaluationSpec, next_command: str = "") -> Iterator[None]:
    """Rewrite the advice of errors from code that assumes a run. next_command: what helps here; empty: keep the
    error's.

    For a bad file the advice is always to look at the model's directory, because no option fixes it.
    """
    try:
        yield
    except LonghaulError as error:
        if error.exit_code != ExitCode.INPUT:
            raise
        if isinstance(error, ModelFileError):
            next_command = f"ls -l {spec.model}   (fix what is wrong with it), then the same command"
        raise LonghaulError(
            error.what,
            kept="everything; nothing was asked",
            next_command=next_command or error.next_command,
            exit_code=ExitCode.INPUT,
        ) from error


def _tell_found(paper: Paper, say: Say) -> None:
    if paper.outcomes:
        _tell(paper, list(paper.outcomes.values()), say)


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
    encoded = [tokenizer.encode_prompt(prompt) for prompt in prompts]
    longest = max(map(len, encoded))
    if spec.profile.grpo.environment.name:  # which says itself what the prompts are
        return open_examinee(spec, answer_format, max(longest, spec.profile.sampling.max_prompt_tokens))
    for prompt in prompts:
        if tokenizer.decode(tokenizer.encode(prompt)).split() != prompt.split():
            say(Note("the tokenizer does not reproduce the prompts exactly: is it meant for such text?"))
            break
    return open_examinee(spec, answer_format, longest)


@contextmanager
def _reward(spec: EvaluationSpec, folder: Path) -> Iterator[RunReward]:
    """The run's own reward. folder: for what failed calls were given."""
    from workers.suites.run_reward import opened

    try:
        with opened(spec.profile, folder, lambda: spec.step or 0) as found:
            yield found
    except LonghaulError as error:
        if error.exit_code != ExitCode.REWARD:
            raise
        raise LonghaulError(
            error.what,
            kept="every answer so far",
            next_command="python -m orchestrator rewards test FILE   then the same command",
            exit_code=ExitCode.REWARD,
        ) from error


def _answer(
    spec: EvaluationSpec,
    paper: Paper,
    batches: Sequence[Batch],
    examinee: Examinee,
    sandbox: Sandbox | None,
    reward: RunReward | None,
    say: Say,
) -> None:
    from workers.rollout.engine import Sampling
    from workers.suites.asking import ask, not_judged

    sampling = Sampling(
        temperature=spec.temperature or 1.0,
        max_new_tokens=spec.max_new_tokens,
        greedy=spec.temperature == 0,
        stop=examinee.answer_format.stop,
    )
    for batch in _in_turn(
        batches,
        lambda questions: ask(examinee, paper.suite, questions, sampling, spec.samples, sandbox, reward),
        examinee.engine,
        say,
    ):
        paper.file.add(batch)
        outcomes = [one.outcome for one in batch]
        paper.outcomes |= {one.question_id: one for one in outcomes}
        _tell(paper, outcomes, say)
        if text := not_judged(paper.suite, batch):
            say(Note(text))
    if (
        reward is not None
        and paper.is_complete
        and (text := reward.never_solved(paper.suite, list(paper.outcomes.values())))
    ):
        say(Note(text))
    if too_long := sum(one.too_long for one in paper.outcomes.values()):
        say(
            Note(
                f"{too_long} prompts of {paper.suite.name} do not fit the model's {examinee.max_positions} "
                f"positions beside {spec.max_new_tokens} new tokens; they count as wrong"
            )
        )


def _in_turn(
    batches: Sequence[Batch],
    work: Callable[[Sequence[Question]], list[QuestionResult]],
    engine: object,
    say: Say,
) -> Iterator[list[QuestionResult]]:
    """`work` on each batch; with fewer rollouts side by side after running out of memory.

    Raises LonghaulError (CUDA_OOM) if a single rollout does not fit.
    """
    from workers.rollout.fewer_rows import with_fewer_rows

    for batch in batches:
        try:
            done = with_fewer_rows(engine, partial(work, batch), lambda text: say(Note(text)))
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
