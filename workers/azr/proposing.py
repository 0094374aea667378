"""The proposer's half of a step: builds prompts from the buffers, generates proposals and validates them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from workers.azr.buffers import Buffers, draw_references, reference_weights
from workers.models.load import Tokenizer
from workers.rng import derive, stream
from workers.rollout.engine import Request, Rollout, RolloutEngine, Sampling
from workers.sandbox import Sandbox
from workers.tasks.answerable import is_answerable
from workers.tasks.entry import Entry
from workers.tasks.items import Task, Triplet
from workers.tasks.kinds.registry import item_of, kind_of, tasks_of
from workers.tasks.programs import can_be_part
from workers.tasks.prompts.style import PromptStyle
from workers.tasks.seeds import seed_entries
from workers.tasks.validate_proposals import TOO_LONG, Candidate, Checked, Rules, check

MAX_REDRAWS = 20
"""How often to redraw an overlong prompt before using one reference fewer."""
MAX_PARTS = 3
"""Maximum number of earlier programs that a composite proposal must build on."""


@dataclass(frozen=True)
class Tools:
    """What both roles share."""

    profile: Profile
    style: PromptStyle
    tokenizer: Tokenizer
    engine: RolloutEngine
    sandbox: Sandbox
    is_held_out: Callable[[str], bool]
    is_output_allowed: Callable[[str], bool]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The kinds of task that the run trains on."""
        return tasks_of(self.profile.azr.tasks)

    @property
    def sampling(self) -> Sampling:
        knobs = self.profile.sampling
        return Sampling(temperature=knobs.temperature, max_new_tokens=knobs.max_completion_tokens, stop=self.style.stop)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.tokenizer.encode_prompt(text)

    def text_of(self, rollout: Rollout) -> str:
        """The completion without its stop token. Keeps the stop text, which is part of the answer."""
        ids = rollout.completion_ids[:-1] if rollout.finish_reason == "stop" else rollout.completion_ids
        return self.tokenizer.decode(ids)

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        return len(prompt_ids) <= self.profile.sampling.max_prompt_tokens


@dataclass(frozen=True)
class ProposerPrompt:
    """A proposer's prompt. program: the first reference program, or "". parts: programs to build on."""

    task: Task
    prompt_ids: tuple[int, ...]
    program: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A prompt with one of its rollouts. Rollouts of equal prompts share a group number."""

    asked: ProposerPrompt
    group: int
    rollout: Rollout


@dataclass(frozen=True)
class Proposed:
    """One proposer rollout and its validation result."""

    task: Task
    group: int
    rollout: Rollout
    text: str
    checked: Checked


def propose(
    tools: Tools, buffers: Buffers, tasks: Sequence[Task], count: int, step: int, seed_batch: int = 0
) -> list[Drawn]:
    """Generate `count` rollouts for each task. Builds all prompts first. seed_batch: batch number in seeding, else 0.

    Skips a task that needs references or programs if its pool is empty.
    """
    seed, azr = tools.profile.run.seed, tools.profile.azr
    purpose = f"seed {seed_batch}" if seed_batch else "propose"
    asked: list[ProposerPrompt] = []
    for task in tasks:
        rng = stream(seed, step, f"{purpose} references {task}")
        parts_rng = stream(seed, step, f"{purpose} parts {task}")
        writes = kind_of(task).writes_program
        pool = list(buffers.of[task].entries) if writes else program_pool(tools.profile, buffers, task)
        if not pool and (not writes or tools.style.min_references):
            continue
        composes = writes and 0 < azr.variants.composite_from_step <= step
        able = [entry.program for entry in pool if can_be_part(entry.program)] if composes else []
        for _ in range(count):
            parts = draw_parts(able, azr.variants.composite_share, parts_rng) if composes else ()
            asked.append(proposer_prompt(tools, task, pool, rng, parts, is_seeding=seed_batch > 0))
    requests = [Request(one.prompt_ids, derive(seed, step, f"{purpose} {one.task}", i)) for i, one in enumerate(asked)]
    rollouts = tools.engine.generate(requests, tools.sampling) if requests else []
    groups: dict[tuple[Task, tuple[int, ...]], int] = {}
    return [
        Drawn(one, groups.setdefault((one.task, one.prompt_ids), len(groups)), rollout)
        for one, rollout in zip(asked, rollouts, strict=True)
    ]


def draw_parts(able: Sequence[str], share: float, rng: Random) -> tuple[str, ...]:
    """With probability `share`, 1 to MAX_PARTS different programs to build on, or fewer if `able` has fewer."""
    wanted = rng.random() < share
    count = rng.randint(1, MAX_PARTS)
    distinct = list(dict.fromkeys(able))
    return tuple(rng.sample(distinct, min(count, len(distinct)))) if wanted else ()


def proposer_prompt(
    tools: Tools,
    task: Task,
    pool: Sequence[Entry],
    rng: Random,
    parts: tuple[str, ...] = (),
    *,
    is_seeding: bool = False,
) -> ProposerPrompt:
    """Build a prompt that fits. Prompts are never truncated: redraw references, then use fewer, then drop the parts.

    If nothing fits, returns the shortest prompt, which may still be too long.
    """
    azr, style = tools.profile.azr, tools.style

    def asked(shown: Sequence[Entry], parts: tuple[str, ...]) -> ProposerPrompt:
        # The pool may hold a program only as a task with many input-output pairs: show the first pair.
        items = [Triplet(one.program, one.inputs[0], one.outputs[0], one.step, one.source) for one in shown]
        ids = tools.encode(style.propose(task, items, parts, is_seeding=is_seeding))
        return ProposerPrompt(task, ids, shown[0].program if shown else "", parts)

    writes = kind_of(task).writes_program
    fewest = style.min_references if writes else 1
    wanted = max(azr.references, fewest) if writes else 1
    weights = reference_weights(pool, azr.variants.reference_weighting) if writes else []
    for building_on in (parts, ()) if parts else ((),):
        for count in range(min(wanted, len(pool)), fewest - 1, -1):
            for _ in range(MAX_REDRAWS if count else 1):
                made = asked(draw_references(pool, count, rng, weights), building_on)
                if tools.fits(made.prompt_ids):
                    return made
    if not fewest:
        return asked([], ())
    return asked([min(pool, key=lambda entry: len(entry.program) + len(entry.inputs[0]))], ())


def check_lengths(tools: Tools, max_positions: int | None) -> None:
    """Check that a full sequence fits the context window and the shortest prompts fit their limit.

    Call before any generation. Raises LonghaulError (INPUT) with the numbers.
    """
    knobs = tools.profile.sampling
    total = knobs.max_prompt_tokens + knobs.max_completion_tokens
    if max_positions is not None and total > max_positions:
        raise _too_long(
            f"sampling.max_prompt_tokens + max_completion_tokens is {total}, the model reads {max_positions} tokens",
            "lower one of the two",
        )
    seeds = {entry.task: entry for entry in seed_entries(tools.tasks, tools.style.name)}
    for task, entry in seeds.items():
        rng = stream(0, 0, "lengths")
        longest = max(
            len(proposer_prompt(tools, task, [entry], rng, is_seeding=True).prompt_ids),
            len(tools.encode(tools.style.solve(task, item_of(entry)))),
        )
        if longest > knobs.max_prompt_tokens:
            raise _too_long(
                f"the shortest prompts of {tools.style.name!r} for {task} take {longest} tokens, "
                f"sampling.max_prompt_tokens is {knobs.max_prompt_tokens}",
                f"set it to {2 * longest} or more, so that references have room",
            )


def _too_long(what: str, advice: str) -> LonghaulError:
    return LonghaulError(
        what,
        kept="the run, unchanged",
        next_command=f"{advice}, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )


def program_pool(profile: Profile, buffers: Buffers, task: Task) -> list[Entry]:
    """Distinct programs for a kind that writes none, at most `azr.induction_max_statements` statements long.

    If all programs are longer, returns the shortest one.
    """
    limit = profile.azr.induction_max_statements
    programs = buffers.programs() or list(buffers.of[task].entries)
    short = [entry for entry in programs if not limit or num_statements(entry.program) <= limit]
    if not programs:
        return []
    return short or [min(programs, key=lambda entry: len(entry.program))]


def num_statements(program: str) -> int:
    """Non-empty lines without the `def` line and the last `return`. Meant for straight-line programs. (pure)"""
    return sum(1 for line in program.splitlines() if line.strip()) - 2


def rules_of(tools: Tools) -> Rules:
    """The rules that a task of this run must satisfy."""
    azr, style = tools.profile.azr, tools.style
    return Rules(
        max_output_chars=azr.max_output_chars,
        allow_none_output=azr.variants.allow_none_output,
        single_def_only=azr.variants.single_def_only,
        novelty=azr.novelty,
        num_inputs=style.form.num_inputs,
        num_shown=style.form.num_shown,
        is_held_out=tools.is_held_out,
        is_output_allowed=tools.is_output_allowed,
        is_answerable=partial(is_answerable, style),
        is_showable=style.is_showable,
    )


def verify(
    tools: Tools, buffers: Buffers, drawn: Sequence[Drawn], step: int, taken: Counter[str], *, is_seeding: bool = False
) -> list[Proposed]:
    """Parse and run every proposal. Counts the rejection reasons in `taken`."""
    style = tools.style
    texts = [tools.text_of(one.rollout) for one in drawn]
    candidates = [
        Candidate(
            one.asked.task,
            style.parse_proposal(one.asked.task, text, is_seeding=is_seeding),
            one.asked.program,
            one.asked.parts,
        )
        for one, text in zip(drawn, texts, strict=True)
    ]
    known = {task: buffer.forms for task, buffer in buffers.of.items()}
    verdicts = check(candidates, tools.sandbox, known, step=step, rules=rules_of(tools))
    proposed = []
    for one, text, verdict in zip(drawn, texts, verdicts, strict=True):
        task = one.asked.task
        if verdict.entry is not None and not tools.fits(tools.encode(style.solve(task, item_of(verdict.entry)))):
            verdict = Checked(None, TOO_LONG)
        if verdict.reason:
            taken[verdict.reason] += 1
        proposed.append(Proposed(task, one.group, one.rollout, text, verdict))
    return proposed
