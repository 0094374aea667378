"""From what a proposer wrote to a verified task, or the first reason why it is none."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from workers.azr.buffers import Entry, make_entry
from workers.azr.prompts.style import Proposal
from workers.azr.tasks import Task
from workers.sandbox import Case, Result, Sandbox, Status
from workers.sandbox.literal import Rejected, canonical_arguments, output_reason
from workers.sandbox.normalise import example_key
from workers.sandbox.screen import screen

MALFORMED = "malformed"
REPEAT = "repeat"
HELD_OUT = "held_out"
WALL = "wall"
TOO_LONG = "too_long"

UNFAIR = frozenset({HELD_OUT, WALL})
"""Reasons that say nothing about the proposal: its row is dropped instead of punished."""


@dataclass(frozen=True)
class Candidate:
    """A proposal with the task it was asked for. proposal None: malformed. program: of an induction proposal."""

    task: Task
    proposal: Proposal | None
    program: str = ""


@dataclass(frozen=True)
class Checked:
    """entry: the valid task (also of a repeat). reason: empty if it is valid and new."""

    entry: Entry | None
    reason: str = ""


def check(
    candidates: Sequence[Candidate],
    sandbox: Sandbox,
    known: Mapping[Task, Container[str]],
    *,
    step: int,
    max_output_chars: int,
    is_held_out: Callable[[str], bool],
    num_inputs: int,
    is_output_allowed: Callable[[str], bool] = lambda value: True,
) -> list[Checked]:
    """A verdict for each candidate, in order. `known`: keys of the tasks that there are. Runs programs three times."""
    looked = [_look(candidate, is_held_out, num_inputs) for candidate in candidates]
    cases = [case for case in looked if isinstance(case, Case)]
    distinct = list(dict.fromkeys(cases))
    outcome = dict(zip(distinct, sandbox.check_deterministic_many(distinct), strict=True))
    seen: dict[Task, set[str]] = {candidate.task: set() for candidate in candidates}
    checked = []
    for candidate, case in zip(candidates, looked, strict=True):
        if not isinstance(case, Case):
            checked.append(Checked(None, case))
            continue
        reason = _reason(outcome[case], max_output_chars)
        if not reason and not all(is_output_allowed(result.value or "") for result in outcome[case]):
            reason = "output_rule"
        if reason:
            checked.append(Checked(None, reason))
            continue
        entry = make_entry(
            candidate.task, case.program, case.inputs, [result.value or "" for result in outcome[case]],
            step=step, source="selfplay", message=candidate.proposal.message if candidate.proposal else "",
        )  # fmt: skip
        is_repeat = entry.key in known[candidate.task] or entry.key in seen[candidate.task]
        seen[candidate.task].add(entry.key)
        checked.append(Checked(entry, REPEAT if is_repeat else ""))
    return checked


def _look(candidate: Candidate, is_held_out: Callable[[str], bool], num_inputs: int) -> Case | str:
    """What is to be run, or why it is not. Reads text only."""
    proposal = candidate.proposal
    if proposal is None:
        return MALFORMED
    program = candidate.program if candidate.task == "ind" else proposal.program
    if screen(program):
        return "screen"
    if is_held_out(program):
        return HELD_OUT
    try:
        inputs = tuple(canonical_arguments(text) for text in proposal.inputs)
        example_key(program, list(inputs))
    except (Rejected, SyntaxError, ValueError):
        return "input_literal"
    wanted = num_inputs if candidate.task == "ind" else 1
    if len(inputs) != wanted or 2 * len(set(inputs)) < wanted:
        return "inputs"
    return Case(program, inputs)


def _reason(results: Sequence[Result], max_output_chars: int) -> str:
    """The first reason among the calls of one program; empty if all are fine."""
    for result in results:
        if result.from_wall:
            return WALL
        if result.status is Status.NONDETERMINISTIC:
            return "determinism"
        if result.status is not Status.OK:
            return "output_size" if result.status is Status.OUTPUT_TOO_LARGE else "run"
        why = output_reason(result.value or "", max_chars=max_output_chars)
        if why:
            return "output_size" if len(result.value or "") > max_output_chars else "output_literal"
    return ""
