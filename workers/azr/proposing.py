"""The proposer's half of a step: prompts from the buffers, completions, and the tasks that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from profiles.schema import Profile
from workers.azr.buffers import Buffers, Entry, draw_references
from workers.azr.prompts.style import PromptStyle
from workers.azr.tasks import Task
from workers.azr.validate_proposals import TOO_LONG, Candidate, Checked, check
from workers.models.load import Tokenizer
from workers.rng import derive, stream
from workers.rollout.engine import Request, Rollout, RolloutEngine, Sampling
from workers.sandbox import Sandbox

MAX_REDRAWS = 20
"""Prompts that are too long are drawn again so often, then with one reference fewer."""


@dataclass(frozen=True)
class Tools:
    """What both roles work with."""

    profile: Profile
    style: PromptStyle
    tokenizer: Tokenizer
    engine: RolloutEngine
    sandbox: Sandbox
    is_held_out: Callable[[str], bool]
    is_output_allowed: Callable[[str], bool]

    @property
    def sampling(self) -> Sampling:
        knobs = self.profile.sampling
        return Sampling(temperature=knobs.temperature, max_new_tokens=knobs.max_completion_tokens)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.tokenizer.encode(text)

    def text_of(self, rollout: Rollout) -> str:
        """The completion alone; what stops it is not part of it."""
        ids = rollout.completion_ids[:-1] if rollout.finish_reason == "stop" else rollout.completion_ids
        return self.tokenizer.decode(ids)

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        return len(prompt_ids) <= self.profile.sampling.max_prompt_tokens


@dataclass(frozen=True)
class Proposed:
    """One proposer rollout and what came of it."""

    task: Task
    group: int
    rollout: Rollout
    checked: Checked


def propose(
    tools: Tools, buffers: Buffers, tasks: Sequence[Task], count: int, step: int, purpose: str = "propose"
) -> list[tuple[Task, int, str, Rollout]]:
    """(task, group, program shown, rollout), `count` for each task; all prompts are made before any generation."""
    seed = tools.profile.run.seed
    asked: list[tuple[Task, tuple[int, ...], str]] = []
    for task in tasks:
        rng = stream(seed, step, f"{purpose} references {task}")
        pool = induction_pool(tools.profile, buffers) if task == "ind" else list(buffers.of[task].entries)
        for _ in range(count):
            prompt, program = proposer_prompt(tools, task, pool, rng)
            asked.append((task, prompt, program))
    requests = [
        Request(prompt, derive(seed, step, f"{purpose} {task}", i)) for i, (task, prompt, _) in enumerate(asked)
    ]
    rollouts = tools.engine.generate(requests, tools.sampling)
    groups: dict[tuple[Task, tuple[int, ...]], int] = {}
    return [
        (task, groups.setdefault((task, prompt), len(groups)), program, rollout)
        for (task, prompt, program), rollout in zip(asked, rollouts, strict=True)
    ]


def proposer_prompt(tools: Tools, task: Task, pool: Sequence[Entry], rng: Random) -> tuple[tuple[int, ...], str]:
    """Ids of a prompt that fits, and the first program that it shows. Never cut: drawn again, then with less."""
    wanted = 1 if task == "ind" else max(tools.profile.azr.references, 1)
    for count in range(wanted, 0, -1):
        for _ in range(MAX_REDRAWS):
            shown = draw_references(pool, count, rng)
            ids = tools.encode(tools.style.propose(task, [entry.item for entry in shown]))  # type: ignore[misc]
            if tools.fits(ids):
                return ids, shown[0].program
    shortest = min(pool, key=lambda entry: len(entry.program) + len(entry.inputs[0]))
    return tools.encode(tools.style.propose(task, [shortest.item])), shortest.program  # type: ignore[list-item]


def induction_pool(profile: Profile, buffers: Buffers) -> list[Entry]:
    """Distinct programs that induction may ask about; the seeds are there when all others are too long."""
    limit = profile.azr.induction_max_statements
    programs = buffers.programs() or list(buffers.of["ind"].entries)
    short = [entry for entry in programs if not limit or num_statements(entry.program) <= limit]
    return short or [min(programs, key=lambda entry: len(entry.program))]


def num_statements(program: str) -> int:
    """Lines of the body without the last `return`. (pure) A measure, for programs of one straight line."""
    return sum(1 for line in program.splitlines() if line.strip()) - 2


def verify(
    tools: Tools, buffers: Buffers, drawn: Sequence[tuple[Task, int, str, Rollout]], step: int, taken: Counter[str]
) -> list[Proposed]:
    """Parse and run every proposal. `taken` counts the reasons of those that are no new valid task."""
    style = tools.style
    candidates = [
        Candidate(task, style.parse_proposal(task, tools.text_of(rollout)), program)
        for task, _, program, rollout in drawn
    ]
    verdicts = check(
        candidates,
        tools.sandbox,
        {task: buffers.of[task] for task in buffers.of},
        step=step,
        max_output_chars=tools.profile.azr.max_output_chars,
        is_held_out=tools.is_held_out,
        is_output_allowed=tools.is_output_allowed,
        num_inputs=style.num_inputs,
    )
    proposed = []
    for (task, group, _, rollout), verdict in zip(drawn, verdicts, strict=True):
        if verdict.entry is not None and not tools.fits(tools.encode(style.solve(task, verdict.entry.item))):
            verdict = Checked(None, TOO_LONG)
        if verdict.reason:
            taken[verdict.reason] += 1
        proposed.append(Proposed(task, group, rollout, verdict))
    return proposed
