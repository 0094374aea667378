"""Checks imported tasks by the rules for self-play's own proposals, and runs every program again.

A task runs as often as a proposal, twice in one process and once in another, and must return the same value each time.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from workers.data.record import Record
from workers.sandbox import Sandbox
from workers.sandbox.literal import same_value
from workers.sandbox.screen import screen
from workers.tasks.entry import Entry
from workers.tasks.kinds import registry
from workers.tasks.prompts.style import Proposal
from workers.tasks.validate_proposals import WALL, Candidate, Rules, check, unsound

RULES_VERSION = 2
CHECKED_WITH = f"rules {RULES_VERSION}, Python {sys.version_info.major}.{sys.version_info.minor}"
"""The rules and Python under which a task was verified; another Python may return another value."""
CHUNK = 128
"""Programs run as one batch; progress is reported after each batch."""
WALL_RETRIES = 2

WORDS = {
    "held_out": "the program belongs to a held-out suite",
    "input_literal": "an input is no list of literals",
    "inputs": "a task has one input; one with many pairs two or more, half of them different",
    "run": "the program raises, hangs or is killed",
    "determinism": "the program does not give the same value each time",
    "output_size": "the output is too long",
    "output_literal": "the output is no literal, None, or not finite",
    "unanswerable": "the answer cannot be written in the form that is asked for",
    "wall": "the machine was too busy to tell, or its sandbox failed",
}
"""The reasons of `validate_proposals` in words; kinds of task add their own."""


def in_words(reason: str) -> str:
    """A reason in words, or unchanged if it has none. (pure)"""
    own = {name: text for kind in registry.known() for name, text in kind.reasons.items()}
    return (WORDS | own).get(reason, reason)


Key = tuple[bool, str, tuple[str, ...]]


@dataclass(frozen=True)
class CheckedTask:
    """entry: the verified task with the values that its program returns; None: invalid for `reason`."""

    entry: Entry | None
    reason: str = ""
    text: str = ""


class Stopped(Exception):
    """The check was asked to stop early; nothing was written."""


@dataclass(frozen=True)
class Checker:
    """accept: why a verified task is still unwanted, as one word, in addition to all rules; empty if it is wanted."""

    sandbox: Sandbox
    rules: Rules
    accept: Callable[[Entry], str] = lambda entry: ""
    progress: Callable[[int, int], None] = lambda done, total: None
    stop_asked: Callable[[], bool] = lambda: False

    def check(self, records: Sequence[Record]) -> list[CheckedTask]:
        """A verdict for each, in order; equal programs with equal inputs run once. Raises Stopped."""
        waiting = list(dict.fromkeys(map(_key, records)))
        found: dict[Key, CheckedTask] = {}
        # Calls of one program share a process, and every program of a batch must have the same number of inputs.
        waiting.sort(key=lambda key: (key[0], len(key[2])))
        for start in range(0, len(waiting), CHUNK):
            if self.stop_asked():
                raise Stopped
            self.progress(start, len(waiting))
            found |= self._run(waiting[start : start + CHUNK])
        if waiting:
            self.progress(len(waiting), len(waiting))
        return [self._of(record, found[_key(record)]) for record in records]

    def _run(self, keys: Sequence[Key]) -> dict[Key, CheckedTask]:
        found: dict[Key, CheckedTask] = {}
        for _ in range(1 + WALL_RETRIES):
            left = [key for key in keys if key not in found or found[key].reason == WALL]
            for shape in sorted({(key[0], len(key[2])) for key in left}):
                alike = [key for key in left if (key[0], len(key[2])) == shape]
                found |= dict(zip(alike, self._alike(alike, *shape), strict=True))
        return found

    def _alike(self, keys: Sequence[Key], several: bool, count: int) -> list[CheckedTask]:
        """Verdicts for tasks with the same number of inputs."""
        if several and count < 2:
            return [_invalid("inputs", program) for _, program, _ in keys]
        # For a given number of inputs every kind runs a program in the same way, so any kind can stand for all.
        task = next(kind.name for kind in registry.known() if kind.many_pairs == several)
        candidates = [Candidate(task, Proposal(program, inputs), program) for _, program, inputs in keys]
        rules = _with_inputs(self.rules, count if several else 1)
        checked = check(candidates, self.sandbox, {task: ()}, step=0, rules=rules)
        return [
            CheckedTask(one.entry) if one.entry is not None else _invalid(one.reason, program)
            for one, (_, program, _) in zip(checked, keys, strict=True)
        ]

    def _of(self, record: Record, verdict: CheckedTask) -> CheckedTask:
        """The verdict for this record's own task and message."""
        if verdict.entry is None:
            return verdict
        entry = replace(verdict.entry, task=record.task, message=record.message)
        if not self.rules.is_showable(record.message):
            return CheckedTask(None, "special_token", "the message contains a control token of the model")
        reason = self.accept(entry) or unsound(entry, self.rules)
        return CheckedTask(None, reason, in_words(reason)) if reason else CheckedTask(entry)


def agrees(record: Record, entry: Entry) -> bool:
    """Whether the record's outputs, if it states any, are those that its program returns."""
    if not record.outputs:
        return True
    return all(same_value(a, b, strict_types=True) for a, b in zip(record.outputs, entry.outputs, strict=True))


def outcome(inputs: Sequence[str], outputs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What a task claims about its program, independent of the order of inputs. (pure)"""
    return tuple(sorted(zip(inputs, outputs, strict=True)))


def _key(record: Record) -> Key:
    return registry.kind_of(record.task).many_pairs, record.program, record.inputs


def _with_inputs(rules: Rules, count: int) -> Rules:
    """Rules for running a program once for all its tasks; whether each kind's answer can be written is checked
    later."""
    return dataclasses.replace(rules, num_inputs=count, is_answerable=lambda entry: True)


def _invalid(reason: str, program: str) -> CheckedTask:
    text = screen(program) if reason == "screen" else None
    return CheckedTask(None, reason, text or in_words(reason))
