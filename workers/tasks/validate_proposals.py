"""Turns a proposer's completion into a verified task, or gives the first reason to refuse it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from workers.sandbox import Case, Result, Sandbox, Status
from workers.sandbox.literal import Rejected, canonical_arguments, output_reason, same_value
from workers.sandbox.normalise import example_key
from workers.sandbox.screen import screen
from workers.tasks import programs
from workers.tasks.entry import Entry, known_by, make_entry, with_form
from workers.tasks.items import Task
from workers.tasks.kinds.registry import kind_of
from workers.tasks.novelty import Novelty
from workers.tasks.prompts.style import Proposal

MALFORMED = "malformed"
REPEAT = "repeat"
HELD_OUT = "held_out"
WALL = "wall"
"""The machine ended a call, not the program: by the wall clock, or because the sandbox itself failed."""
TOO_LONG = "too_long"
PARTS = "parts"
"""It does not build on the required earlier programs: one is not called, rebound, or merely wrapped."""
SPECIAL_TOKEN = "special_token"
"""A text contains a control token of the model, which would end a prompt that shows it."""

UNANSWERABLE = "unanswerable"
"""The answer cannot be written in the form that the prompt asks for."""

UNFAIR = frozenset({HELD_OUT, WALL})
"""Reasons that say nothing about the proposal: its row is dropped, not penalised."""


@dataclass(frozen=True)
class Candidate:
    """A proposal with the task that it was requested for. proposal None if malformed.

    program: the subject of the proposal, if its kind writes none. parts: earlier programs that it must build on.
    """

    task: Task
    proposal: Proposal | None
    program: str = ""
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """entry: the valid task (also for a repeat). reason: empty if it is valid and new."""

    entry: Entry | None
    reason: str = ""
    is_well_formed: bool = True
    """False: the task is valid, but not the form of the response."""


@dataclass(frozen=True)
class Rules:
    """Configurable rules of validity; the [azr] knobs of these names explain them."""

    max_output_chars: int = 4096
    allow_none_output: bool = False
    single_def_only: bool = False
    novelty: Novelty = "tree"
    num_inputs: int = 10
    num_shown: int | None = None
    """How many of a task's pairs the prompt shows; None: half of them."""
    is_held_out: Callable[[str], bool] = lambda program: False
    is_output_allowed: Callable[[str], bool] = lambda value: True
    """What a style cannot ask about, in addition to the rules for all styles."""
    is_answerable: Callable[[Entry], bool] = lambda entry: True
    """Whether the answer's form can carry the right answer."""
    is_showable: Callable[[str], bool] = lambda text: True
    """Whether a text may appear in a prompt."""


def check(
    candidates: Sequence[Candidate],
    sandbox: Sandbox,
    known: Mapping[Task, Container[str]],
    *,
    step: int,
    rules: Rules,
) -> list[Checked]:
    """A verdict for each candidate, in order. `known`: identities of known tasks. Runs each program three times."""
    looked = [_look(candidate, rules) for candidate in candidates]
    distinct = list(dict.fromkeys(case for case in looked if isinstance(case, Case)))
    outcome = dict(zip(distinct, sandbox.check_deterministic_many(distinct), strict=True))
    reasons = {case: _reason(results, rules) for case, results in outcome.items()}
    wrappers = _wrappers(candidates, looked, outcome, reasons, sandbox)
    seen: dict[Task, set[str]] = {candidate.task: set() for candidate in candidates}
    checked = []
    for number, (candidate, case) in enumerate(zip(candidates, looked, strict=True)):
        reason = case if isinstance(case, str) else reasons[case] or (PARTS if number in wrappers else "")
        if reason or isinstance(case, str):
            checked.append(Checked(None, reason))
            continue
        assert candidate.proposal is not None
        entry = make_entry(
            candidate.task,
            case.program,
            case.inputs,
            [result.value or "" for result in outcome[case]],
            step=step,
            source="selfplay",
            message=candidate.proposal.message,
        )
        entry = with_form(entry, rules.novelty)
        if not rules.is_answerable(entry):
            checked.append(Checked(None, UNANSWERABLE))
            continue
        name = known_by(entry, rules.novelty)
        is_repeat = name in known[candidate.task] or name in seen[candidate.task]
        seen[candidate.task].add(name)
        checked.append(Checked(entry, REPEAT if is_repeat else "", candidate.proposal.is_well_formed))
    return checked


def _wrappers(
    candidates: Sequence[Candidate],
    looked: Sequence[Case | str],
    outcome: Mapping[Case, Sequence[Result]],
    reasons: Mapping[Case, str],
    sandbox: Sandbox,
) -> set[int]:
    """Indices of the candidates whose `f` returns exactly what one of their parts returns for the same input."""
    asked = [
        (number, Case(case.program, case.inputs, f"g_{part}"), outcome[case][0].value or "")
        for number, (candidate, case) in enumerate(zip(candidates, looked, strict=True))
        if isinstance(case, Case) and not reasons[case]
        for part in range(len(candidate.parts))
    ]
    results = sandbox.execute_many([case for _, case, _ in asked]) if asked else []
    return {
        number
        for (number, _, value), (found,) in zip(asked, results, strict=True)
        if found.status is Status.OK and same_value(found.value or "", value)
    }


def _look(candidate: Candidate, rules: Rules) -> Case | str:
    """What to run, or why not to. Reads only the text."""
    proposal = candidate.proposal
    if proposal is None:
        return MALFORMED
    kind = kind_of(candidate.task)
    program = proposal.program if kind.writes_program else candidate.program
    if candidate.parts:
        # Check before composing: a function of its own by a part's name must not replace that part.
        if screen(program) or programs.parts_problem(program, len(candidate.parts)):
            return PARTS
        program = programs.composed(program, candidate.parts)
    if screen(program) or (rules.single_def_only and programs.num_functions(proposal.program) > 1):
        return "screen"
    if rules.is_held_out(program):
        return HELD_OUT
    try:
        inputs = tuple(canonical_arguments(text) for text in proposal.inputs)
        example_key(program, list(inputs))
    except (Rejected, SyntaxError, ValueError):
        return "input_literal"
    wanted = rules.num_inputs if kind.many_pairs else 1
    if len(inputs) != wanted or 2 * len(set(inputs)) < wanted:
        return "inputs"
    if why := kind.why_unsound(program, inputs, rules.num_shown):
        return why
    if not all(rules.is_showable(text) for text in (program, *inputs, proposal.message)):
        return SPECIAL_TOKEN
    return Case(program, inputs)


def unsound(entry: Entry, rules: Rules) -> str:
    """Why nothing can be learnt from a task that holds, as the reason for refusing it; else empty."""
    if why := kind_of(entry.task).why_unsound(entry.program, entry.inputs, rules.num_shown):
        return why
    return "" if rules.is_answerable(entry) else UNANSWERABLE


_FAILED = {Status.OUTPUT_TOO_LARGE: "output_size", Status.NOT_LITERAL: "output_literal"}


def _reason(results: Sequence[Result], rules: Rules) -> str:
    """The first failure among one program's calls; empty if all succeeded."""
    for result in results:
        if result.is_undecided:
            return WALL
        if result.status is Status.NONDETERMINISTIC:
            return "determinism"
        if result.status is not Status.OK:
            return _FAILED.get(result.status, "run")
        value = result.value or ""
        if len(value) > rules.max_output_chars:
            return "output_size"
        if output_reason(value, max_chars=rules.max_output_chars, allow_none=rules.allow_none_output):
            return "output_literal"
    values = [result.value or "" for result in results]
    if not all(map(rules.is_showable, values)):
        return SPECIAL_TOKEN
    return "" if all(map(rules.is_output_allowed, values)) else "output_rule"
