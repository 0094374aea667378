"""Training sequences for the six cells: prompts with a direct answer, or with worked steps before the answer.

Every answer is correct. Programs in the held-out fold never appear, neither in prompts nor in answers.
"""

from dataclasses import dataclass
from random import Random

from workers.pocket.cells import ASKED, CELLS
from workers.pocket.example import Example
from workers.pocket.language import (
    VARIABLES,
    Program,
    Statement,
    apply,
    is_held_out,
    random_program,
    random_value,
    render,
    run_program,
    trace,
)
from workers.pocket.search import search
from workers.tasks.items import HiddenProgram, Task, Triplet
from workers.tasks.kinds.registry import kind_of
from workers.tasks.prompts.pocket import PocketStyle

STYLE = PocketStyle()
NUM_SHOWN = 3
"""Input/output pairs shown in an induction prompt."""
INDUCTION_LETTERS = (3, 5)
"""Minimum and maximum length of induction inputs: short, because a search writes their values many times."""


@dataclass(frozen=True)
class Recipe:
    """Composition of a corpus."""

    cell_weights: tuple[float, ...] = (1.0, 1.0, 1.2, 0.15, 0.15, 0.15)
    """Sampling weight of each cell, in the order of CELLS."""
    statement_weights: tuple[float, ...] = (6, 8, 10, 12, 14, 16, 16, 16)
    """Weight of programs of 1, 2, ... statements."""
    worked_share: float = 0.8
    """Share of solve sequences with worked steps. How often the model works is set by the style weights instead."""
    induction_weights: tuple[float, ...] = (1, 4, 5)
    """Weight of induction programs of 1, 2 and 3 statements."""
    direct_induction: int = 1
    """Maximum number of statements for a full direct induction answer. Longer direct answers are cut after their
    start."""


def make_example(rng: Random, recipe: Recipe) -> Example:
    """One random sequence without held-out programs."""
    while True:
        cell = rng.choices(CELLS, recipe.cell_weights)[0]
        worked = rng.random() < recipe.worked_share
        example: Example | None
        if cell not in ASKED:
            example = _proposal_example(rng, recipe, cell)
        elif kind_of(cell).many_pairs:
            example = _pairs_example(rng, recipe, cell, worked)
        else:
            example = _trace_example(rng, recipe, cell, worked)
        if example and not any(is_held_out(render(program)) for program in example.programs):
            return example


def draw_program(rng: Random, recipe: Recipe, inputs: list[str]) -> Program:
    """A random program whose number of statements follows the recipe's weights."""
    counts = range(1, len(recipe.statement_weights) + 1)
    return random_program(rng, rng.choices(counts, recipe.statement_weights)[0], inputs)


def _trace_example(rng: Random, recipe: Recipe, cell: Task, worked: bool) -> Example:
    value = random_value(rng)
    program = draw_program(rng, recipe, [value])
    triplet = Triplet(render(program), repr(value), repr(run_program(program, value)), 0, "corpus")
    completion = (deduce if kind_of(cell).asks == "output" else abduce)(program, value, worked)
    return Example(cell, STYLE.solve(cell, triplet), completion, worked, (program,))


def deduce(program: Program, value: str, worked: bool) -> str:
    """Completion of a deduction: the output; if worked, the value of each variable on the way to it."""
    values = trace(program, value)
    if not worked:
        return repr(values[-1])
    steps = "".join(f"{name}={step}" for name, step in zip(VARIABLES[1:], values[1:-1], strict=False))
    return f"<work>{steps}{VARIABLES[len(program)]}={values[-1]!r}"


def abduce(program: Program, value: str, worked: bool) -> str:
    """Completion of an abduction: an input with the same output as `value`.

    worked: the preimage of each statement, from the last to the first.
    """
    chain = backwards(program, run_program(program, value))
    if chain is None or run_program(program, chain[0]) != run_program(program, value):
        chain = trace(program, value)
    if not worked:
        return repr(chain[0])
    names = VARIABLES[1 : len(program)]
    steps = "".join(f"{name}={step}" for name, step in zip(names[::-1], chain[-2:0:-1], strict=True))
    return f"<work>{steps}a={chain[0]!r}"


def backwards(program: Program, output: str) -> list[str] | None:
    """Values of all variables, derived from the output alone; None if a value is too short to invert a statement."""
    values = [output]
    for statement in reversed(program):
        if statement.kind in ("append", "prepend") and not values[0]:
            return None
        values.insert(0, preimage(statement, values[0]))
    return values


def preimage(statement: Statement, value: str) -> str:
    """A value that the statement maps to `value`, if one exists; arbitrary letters become `u`."""
    inverse = {"rotate_left": "rotate_right", "rotate_right": "rotate_left", "drop_first": "", "drop_last": ""}
    match statement.kind:
        case "reverse" | "swapcase":
            return apply(statement, value)
        case "rotate_left" | "rotate_right":
            return apply(Statement(inverse[statement.kind]), value)
        case "drop_first":
            return "u" + value
        case "drop_last":
            return value + "u"
        case "every_other":
            return "u".join(value)
        case "append":
            return value[:-1]
        case "prepend":
            return value[1:]
        case _:  # upper and replace map their own results to themselves
            return value


def draw_problem(rng: Random, num_statements: int, num_pairs: int) -> tuple[Program, list[tuple[str, str]]]:
    """A program and input/output pairs; each statement changes the value in at least two of the shown pairs."""
    while True:
        inputs = [random_value(rng, *INDUCTION_LETTERS) for _ in range(num_pairs)]
        program = random_program(rng, num_statements, inputs)
        traces = [trace(program, value) for value in inputs]
        steps = range(num_statements)
        if all(sum(values[i] != values[i + 1] for values in traces[:NUM_SHOWN]) >= 2 for i in steps):
            return program, [(values[0], values[-1]) for values in traces]


def _pairs_example(rng: Random, recipe: Recipe, cell: Task, worked: bool) -> Example | None:
    num_statements = rng.choices((1, 2, 3), recipe.induction_weights)[0]
    program, pairs = draw_problem(rng, num_statements, NUM_SHOWN)
    inputs, outputs = zip(*pairs, strict=True)
    problem = HiddenProgram(render(program), tuple(map(repr, inputs)), tuple(map(repr, outputs)), "", 0, "corpus")
    prompt = STYLE.solve(cell, problem)
    if not worked:
        # Direct answers with longer programs are cut after their start: only worked sequences teach those programs.
        at_a_glance = num_statements <= recipe.direct_induction
        return Example(cell, prompt, render(program) if at_a_glance else "def f(a):", False, (program,), at_a_glance)
    answer = search(rng, program, pairs)
    return Example(cell, prompt, answer[0], True, (program, answer[1])) if answer else None


def _proposal_example(rng: Random, recipe: Recipe, cell: str) -> Example:
    shown_value, value = random_value(rng), random_value(rng)
    task = cell[1:]
    writes = kind_of(task).writes_program
    if not writes:  # short programs only, as in the induction tasks
        shown = random_program(rng, rng.randint(1, 3), [shown_value])
    else:
        shown = draw_program(rng, recipe, [shown_value])
    reference = Triplet(render(shown), repr(shown_value), "", 0, "corpus")
    prompt = STYLE.propose(task, [reference])
    if not writes:
        completion = "<sep>".join(repr(random_value(rng, *INDUCTION_LETTERS)) for _ in range(STYLE.form.num_inputs))
        return Example(cell, prompt, completion, False, (shown,), styled=False)
    program = draw_program(rng, recipe, [value])
    return Example(cell, prompt, f"{render(program)}<in>{value!r}", False, (shown, program), styled=False)
