"""Release gate of a pocket model: it can work step by step, it rarely does, and its direct answers are often wrong.

Reinforcement learning exploits the gap between worked and direct accuracy; without it there is nothing to elicit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from torch import nn

from profiles.task_kinds import ABDUCTION, DEDUCTION, INDUCTION
from workers.pocket.tokenizer import PROGRAMS
from workers.pocket.vocabulary import EOS, Vocabulary
from workers.rollout.engine import Request, RolloutEngine, Sampling
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions

MAX_TOKENS = 128


class GateProblem(Protocol):
    """A held-out problem, and what the gate must know about its answers."""

    @property
    def task(self) -> str:
        """Key under which its figures are reported."""
        ...

    @property
    def prompt(self) -> str: ...

    @property
    def worked_start(self) -> str:
        """Start of a worked completion."""
        ...

    @property
    def direct_start(self) -> str:
        """Start of a direct completion."""
        ...

    def is_right(self, completion: str) -> bool: ...

    def is_worked(self, completion: str) -> bool: ...

    def is_answered(self, completion: str) -> bool:
        """Whether the completion contains an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the gate for one task."""

    min_worked: float
    max_direct: float
    min_worked_share: float = 0.05
    max_worked_share: float = 0.20
    max_malformed: float = 0.02


BOUNDS: Mapping[str, Bounds] = {
    ABDUCTION: Bounds(min_worked=0.90, max_direct=0.45),
    DEDUCTION: Bounds(min_worked=0.93, max_direct=0.45),
    INDUCTION: Bounds(min_worked=0.65, max_direct=0.35),
    "ops1": Bounds(min_worked=0.93, max_direct=0.75),
    "ops2": Bounds(min_worked=0.90, max_direct=0.45),
    "ops3": Bounds(min_worked=0.85, max_direct=0.30),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one task. Accuracies use one answer per problem."""

    num_examples: int
    worked: float
    """Greedy accuracy when the completion is forced to start with work."""
    direct: float
    """Greedy accuracy when the completion is forced to start with an answer."""
    greedy: float
    """Greedy accuracy, unforced."""
    sampled: float
    """Accuracy at temperature 1, unforced."""
    sampled_worked: float
    """Accuracy at temperature 1 when work is forced."""
    worked_share: float
    """Share of worked answers at temperature 1."""
    malformed: float
    """Share of completions at temperature 1 that contain no answer."""
    mean_tokens: float
    """Mean number of tokens per completion at temperature 1 when work is forced."""


def measure(
    model: nn.Module, problems: Sequence[GateProblem], vocabulary: Vocabulary = PROGRAMS
) -> dict[str, Measured]:
    """Run all problems in five modes. Tasks are in order of first appearance."""
    engine = Portions(NativeEngine(model), max_rows=4096)
    greedy, sampled = Sampling(greedy=True, max_new_tokens=MAX_TOKENS), Sampling(max_new_tokens=MAX_TOKENS)
    to_work, at_once = [one.worked_start for one in problems], [one.direct_start for one in problems]
    freely = [""] * len(problems)
    worked, direct, free, drawn, drawn_worked = (
        _complete(engine, problems, sampling, starts, vocabulary)
        for sampling, starts in (
            (greedy, to_work),
            (greedy, at_once),
            (greedy, freely),
            (sampled, freely),
            (sampled, to_work),
        )
    )
    result = {}
    for task in dict.fromkeys(problem.task for problem in problems):
        mine = [i for i, problem in enumerate(problems) if problem.task == task]

        def rate(texts: list[str], mine: list[int] = mine) -> float:
            return sum(problems[i].is_right(texts[i]) for i in mine) / len(mine)

        result[task] = Measured(
            num_examples=len(mine),
            worked=rate(worked),
            direct=rate(direct),
            greedy=rate(free),
            sampled=rate(drawn),
            sampled_worked=rate(drawn_worked),
            worked_share=sum(problems[i].is_worked(drawn[i]) for i in mine) / len(mine),
            malformed=sum(not problems[i].is_answered(drawn[i]) for i in mine) / len(mine),
            mean_tokens=sum(len(vocabulary.encode(drawn_worked[i])) for i in mine) / len(mine),
        )
    return result


def _complete(
    engine: RolloutEngine,
    problems: Sequence[GateProblem],
    sampling: Sampling,
    starts: list[str],
    vocabulary: Vocabulary,
) -> list[str]:
    """Completions that begin with `starts`, without their stop token."""
    prompts = [vocabulary.encode(problem.prompt + start) for problem, start in zip(problems, starts, strict=True)]
    rollouts = engine.generate([Request(tuple(ids), seed) for seed, ids in enumerate(prompts)], sampling)
    texts = [vocabulary.decode(rollout.completion_ids) for rollout in rollouts]
    return [(start + text).removesuffix(EOS) for start, text in zip(starts, texts, strict=True)]


def failures(measured: Mapping[str, Measured]) -> list[str]:
    """Violated bounds, one sentence each with the measured value and the limit."""
    found = []
    for task, figures in measured.items():
        bounds = BOUNDS[task]
        rules = [
            (figures.worked >= bounds.min_worked, "forced worked", figures.worked, ">=", bounds.min_worked),
            (figures.direct <= bounds.max_direct, "forced direct", figures.direct, "<=", bounds.max_direct),
            (
                figures.worked_share >= bounds.min_worked_share,
                "worked share",
                figures.worked_share,
                ">=",
                bounds.min_worked_share,
            ),
            (
                figures.worked_share <= bounds.max_worked_share,
                "worked share",
                figures.worked_share,
                "<=",
                bounds.max_worked_share,
            ),
            (figures.malformed <= bounds.max_malformed, "malformed", figures.malformed, "<=", bounds.max_malformed),
        ]
        found += [
            f"{task}: {what} is {is_:.3f}, must be {sign} {limit}" for ok, what, is_, sign, limit in rules if not ok
        ]
    return found


def table(measured: Mapping[str, Measured]) -> str:
    """The figures as a human-readable table."""
    lines = ["task   worked  direct  greedy  T=1    T=1 worked  worked share  malformed  tokens"]
    for task, m in measured.items():
        lines.append(
            f"{task}    {m.worked:.3f}   {m.direct:.3f}   {m.greedy:.3f}   {m.sampled:.3f}  {m.sampled_worked:.3f}"
            f"       {m.worked_share:.3f}         {m.malformed:.3f}      {m.mean_tokens:.1f}"
        )
    return "\n".join(lines)


def as_json(measured: Mapping[str, Measured]) -> dict[str, dict[str, float]]:
    """The figures for gate.json."""
    return {task: {key: round(value, 4) for key, value in asdict(m).items()} for task, m in measured.items()}
