"""Held-out problems of the pocket model, and a judge for their answers.

Programs are drawn with a fixed seed from the fold that no corpus contains. The judge runs only programs of the little
language (it parses induction answers back into it), so it needs no sandbox. Valid Python outside of the language counts
as wrong.
"""

import re
from dataclasses import dataclass
from random import Random

from profiles.task_kinds import NAMES
from workers.pocket.corpus import NUM_SHOWN, draw_problem
from workers.pocket.language import (
    KINDS,
    VARIABLES,
    Program,
    Statement,
    is_held_out,
    random_program,
    random_value,
    render,
    run_program,
)
from workers.tasks.items import HiddenProgram, Task, Triplet
from workers.tasks.kinds.registry import kind_of
from workers.tasks.pairs import hides_a_shown_input
from workers.tasks.prompts.pocket import PocketStyle

EVALUATION_SEED = 20_251_121
STATEMENTS = (5, 8)
"""Minimum and maximum number of statements in deduction and abduction programs."""
INDUCTION_STATEMENTS = (2, 3)
HIDDEN_PAIRS = 3
STYLE = PocketStyle()
WORKED_START = "<work>"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One held-out problem."""

    task: Task
    item: Triplet | HiddenProgram
    program: Program

    @property
    def prompt(self) -> str:
        """The prompt for the solver."""
        return STYLE.solve(self.task, self.item)

    @property
    def worked_start(self) -> str:
        return WORKED_START

    @property
    def direct_start(self) -> str:
        words = kind_of(self.task).pocket
        assert words is not None
        return words.begins

    def is_worked(self, completion: str) -> bool:
        return STYLE.is_worked(self.task, completion)

    def is_answered(self, completion: str) -> bool:
        return STYLE.parse_answer(self.task, completion) is not None

    def is_right(self, completion: str) -> bool:
        """Whether a completion solves the problem."""
        answer = STYLE.parse_answer(self.task, completion)
        return answer is not None and self.is_solved_by(answer)

    def is_solved_by(self, answer: str) -> bool:
        """Whether an answer in the pocket style solves the problem; runs the program if necessary."""
        if isinstance(self.item, HiddenProgram):
            program = parse_program(answer)
            pairs = list(zip(self.item.inputs, self.item.outputs, strict=True))[NUM_SHOWN:]
            return program is not None and all(repr(run_program(program, text[1:-1])) == value for text, value in pairs)
        if kind_of(self.task).asks == "output":
            return answer == self.item.output
        return repr(run_program(self.program, answer[1:-1])) == self.item.output


def held_out_problems(num_each: int = 300, seed: int = EVALUATION_SEED) -> list[HeldOut]:
    """`num_each` problems of each built-in kind, all with distinct programs."""
    rng = Random(seed)
    problems = []
    seen: set[str] = set()
    for task in NAMES:
        count = 0
        while count < num_each:
            problem = _draw(rng, task)
            text = render(problem.program)
            if is_held_out(text) and text not in seen and _hides(problem.item):
                seen.add(text)
                problems.append(problem)
                count += 1
    return problems


def _hides(item: Triplet | HiddenProgram) -> bool:
    """Whether memorising the shown pairs answers none of the hidden ones."""
    return not isinstance(item, HiddenProgram) or not hides_a_shown_input(item.program, item.inputs, NUM_SHOWN)


def _draw(rng: Random, task: Task) -> HeldOut:
    if kind_of(task).many_pairs:
        program, pairs = draw_problem(rng, rng.randint(*INDUCTION_STATEMENTS), NUM_SHOWN + HIDDEN_PAIRS)
        inputs, outputs = zip(*pairs, strict=True)
        problem = HiddenProgram(render(program), tuple(map(repr, inputs)), tuple(map(repr, outputs)), "", 0, "held-out")
        return HeldOut(task, problem, program)
    value = random_value(rng)
    program = random_program(rng, rng.randint(*STATEMENTS), [value])
    triplet = Triplet(render(program), repr(value), repr(run_program(program, value)), 0, "held-out")
    return HeldOut(task, triplet, program)


def _line_pattern(kind: str) -> str:
    template = re.escape(KINDS[kind][0])
    for name, group in ((r"\{p\}", r"(?P<p>[a-l])"), (r"\{x\}", r"(?P<x>[a-zA-Z])"), (r"\{y\}", r"(?P<y>[a-zA-Z])")):
        template = template.replace(name, group, 1).replace(name, "(?P=p)")
    return template


_LINES = [(kind, re.compile(r"(?P<name>[a-l]) = " + _line_pattern(kind))) for kind in KINDS]


def parse_program(text: str) -> Program | None:
    """Parse source text into a program; None if it is not in the language."""
    statements = []
    for line in text.split("\n    ")[1:-1]:
        match = next(((kind, found) for kind, pattern in _LINES if (found := pattern.fullmatch(line))), None)
        if match is None:
            return None
        letters = match[1].groupdict()
        statements.append(Statement(match[0], letters.get("x", ""), letters.get("y", "")))
    program = tuple(statements)
    return program if len(program) < len(VARIABLES) and render(program) == text else None
