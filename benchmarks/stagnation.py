"""Simulates how often the stagnation rule stops improving runs, and how soon others. `--seeds` runs per line.

Each problem has a latent difficulty. A sampled answer is right with probability sigmoid(skill - difficulty),
independently each time. A greedy answer is right if skill - difficulty + noise > 0. A problem's noise is correlated
between cycles (`rho`), so its answer mostly stays the same. Skill is set so that expected accuracy follows the line's
curve. `wobble` is a common error of a whole checkpoint in points of accuracy, correlated between cycles. Tests
`orchestrator.stagnation.verdict` with the schema's defaults.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from zlib import crc32

import numpy as np

from orchestrator.stagnation import verdict
from profiles.schema import Stagnation
from profiles.task_kinds import ABDUCTION, DEDUCTION, NAMES
from state.history import WINDOW, AnswerBits, CycleFacts, History, ValidationFacts
from state.states import CycleState, RunState
from workers.intervals import wilson

PROPOSALS = 960
"""Proposals in a cycle of `azr-0.5b`: 20 steps of 3 x 16."""


@dataclass(frozen=True)
class Held:
    """Held-out problems: (suite, task) and their number. first: the number used at cycle 0, before all are used."""

    name: str
    tasks: tuple[tuple[str, str], ...]
    each: int
    min_cycles: int
    first: int = 0


CRUXEVAL = (("cruxeval-i", ABDUCTION), ("cruxeval-o", DEDUCTION))
SETTINGS = (
    Held("azr 2 x 800", CRUXEVAL, 800, 10, first=200),
    Held("azr 2 x 400", CRUXEVAL, 400, 10),
    Held("azr 2 x 200", CRUXEVAL, 200, 10),
    Held("pocket 3 x 300", tuple(("pocket", task) for task in NAMES), 300, 6),
)

Curve = Callable[[int], float]


@dataclass(frozen=True)
class Line:
    """One kind of run. wants: "go" (no stop or reseed up to `until`), or "stop" between `since` and `until`."""

    name: str
    wants: str
    since: int
    until: int
    curve: Curve
    greedy: Curve | None = None
    """Curve of greedy answers, if it differs from that of sampled ones."""
    rho: float = 0.7
    wobble: float = 0.0
    accepted: float = 0.6
    learnable: float = 0.6
    """Of accepted proposals."""


def ramp(start: float, end: float, cycles: int, since: int = 0) -> Curve:
    return lambda cycle: start + (end - start) * min(max(cycle - since, 0), cycles) / cycles


def flat(level: float) -> Curve:
    return lambda cycle: level


def step(before: float, after: float, at: int) -> Curve:
    return lambda cycle: before if cycle < at else after


def saturating(start: float, gain: float, cycles: float) -> Curve:
    return lambda cycle: start + gain * (1 - math.exp(-cycle / cycles))


LINES = (
    Line("healthy: .40 to .50 in 40 cycles", "go", 0, 40, ramp(0.4, 0.5, 40)),
    Line("healthy: .40 to .60 in 40 cycles", "go", 0, 40, ramp(0.4, 0.6, 40)),
    Line("healthy: .40 to .48 in 60 cycles", "go", 0, 60, ramp(0.4, 0.48, 60)),
    Line("the same, answers stick (rho .95)", "go", 0, 60, ramp(0.4, 0.48, 60), rho=0.95),
    Line("the same, answers do not (rho 0)", "go", 0, 60, ramp(0.4, 0.48, 60), rho=0.0),
    Line("the same, wobble of .5 points", "go", 0, 60, ramp(0.4, 0.48, 60), wobble=0.5),
    Line("healthy: flat for 12, then +.20 in 28", "go", 0, 40, ramp(0.4, 0.6, 28, since=12)),
    Line("healthy: flat for 12, then +.20 at once", "go", 0, 34, step(0.4, 0.6, 12)),
    # It rises by more than min_progress in 10 cycles up to cycle 39.
    Line("healthy: .40 to .65, slower and slower", "go", 0, 39, saturating(0.4, 0.25, 15)),
    Line("healthy: sampled .30 to .50 in 40, greedy flat", "go", 0, 40, ramp(0.3, 0.5, 40), greedy=flat(0.4)),
    Line("just worth it: min_progress for 60 cycles", "go", 0, 60, ramp(0.4, 0.478, 60)),
    Line("plateau at .45", "stop", 0, 30, flat(0.45)),
    Line("plateau at .45, answers stick (rho .95)", "stop", 0, 30, flat(0.45), rho=0.95),
    Line("plateau at .45, answers do not (rho 0)", "stop", 0, 30, flat(0.45), rho=0.0),
    Line("plateau at .45, wobble of .5 points", "stop", 0, 30, flat(0.45), wobble=0.5),
    Line("plateau at .05", "stop", 0, 30, flat(0.05)),
    Line("plateau at .95", "stop", 0, 30, flat(0.95)),
    Line("plateau after +.20 in 30 cycles", "stop", 30, 60, ramp(0.4, 0.6, 30)),
    Line("collapse: .45 to .25 at cycle 20", "stop", 20, 25, step(0.45, 0.25, 20)),
    Line("collapse: .45 to 0 at cycle 20", "stop", 20, 25, step(0.45, 0.0, 20)),
    Line(
        "collapse: .40 to .60 in 20 cycles, then .40",
        "stop",
        20,
        25,
        lambda cycle: 0.4 + 0.01 * cycle if cycle < 20 else 0.4,
    ),
    Line("collapse: .95 to .75 at cycle 20", "stop", 20, 25, step(0.95, 0.75, 20)),
    Line(
        "poor data (15 % new, 30 % of them learnable), +.01 a cycle",
        "go",
        0,
        40,
        ramp(0.3, 0.7, 40),
        accepted=0.15,
        learnable=0.3,
    ),
    Line("the same, flat", "stop", 0, 60, flat(0.45), accepted=0.15, learnable=0.3),
    Line("dry (2 % new), flat", "stop", 0, 60, flat(0.45), accepted=0.02),
)


class Problems:
    """The problems of one task and a model that answers them."""

    def __init__(self, rng: np.random.Generator, count: int, first: int) -> None:
        self.rng = rng
        self.difficulty = rng.normal(0.0, 2.0, count)
        self.noise = rng.normal(0.0, 1.0, count)
        self.grid = np.linspace(-16.0, 16.0, 129)
        margin = self.grid[:, None] - self.difficulty
        self.sampled_at = _sigmoid(margin).mean(1)
        self.greedy_at = _sigmoid(1.702 * margin).mean(1)  # of a normal noise, to within .01
        self.names = {some: tuple(map(str, range(some))) for some in {first or count, count}}

    def advance(self, rho: float) -> None:
        fresh = self.rng.normal(0.0, 1.0, len(self.noise))
        self.noise = rho * self.noise + math.sqrt(1 - rho * rho) * fresh

    def answer(self, greedy: float, sampled: float, count: int) -> AnswerBits:
        """Answers to the first `count` problems, at these expected accuracies over all."""
        margin = np.interp(greedy, self.greedy_at, self.grid) - self.difficulty + self.noise
        chance = _sigmoid(np.interp(sampled, self.sampled_at, self.grid) - self.difficulty)
        draws = self.rng.random(len(chance)) < chance
        return AnswerBits(self.names[count], _bits(margin[:count] > 0), _bits(draws[:count]))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _bits(right: np.ndarray) -> int:
    return int.from_bytes(np.packbits(right, bitorder="little").tobytes(), "little")


def cycles_of(line: Line, held: Held, seed: int) -> Iterator[CycleFacts]:
    """Endless cycles 0, 1, 2 ... of one run."""
    rng = np.random.default_rng([seed, crc32(f"{line.name}/{held.name}".encode())])
    tasks = {key: Problems(rng, held.each, held.first) for key in held.tasks}
    off, cycle = rng.normal(), 0
    while True:
        shift = line.wobble / 100 * off
        greedy, sampled = (curve(cycle) + shift for curve in (line.greedy or line.curve, line.curve))
        count = held.first if held.first and cycle == 0 else held.each
        answers = {key: problems.answer(greedy, sampled, count) for key, problems in tasks.items()}
        suites = list(dict.fromkeys(suite for suite, _ in answers))
        scores = tuple(
            ValidationFacts(
                cycle,
                cycle * 20,
                suite,
                0.0,
                0,
                count,
                answers={task: one for (of, task), one in answers.items() if of == suite},
            )
            for suite in suites
        )
        new = int(rng.binomial(PROPOSALS, line.accepted)) if cycle else 0
        yield CycleFacts(
            cycle,
            "train" if cycle else "seed",
            CycleState.VALIDATED,
            cycle * 20 - 19,
            cycle * 20 + 1,
            proposals=PROPOSALS if cycle else 0,
            new_examples=new,
            learnable=int(rng.binomial(new, line.learnable)),
            validations=scores,
        )
        off, cycle = 0.5 * off + math.sqrt(0.75) * rng.normal(), cycle + 1
        for problems in tasks.values():
            problems.advance(line.rho)


@dataclass(frozen=True)
class Ended:
    """The result of one run: cycle and kind of its stop (-1: none up to the end of the line), and its reseeds."""

    cycle: int
    kind: str
    reseeds: int
    evidence: str


def play(line: Line, held: Held, seed: int, rule: Stagnation | None = None) -> Ended:
    """Simulate one run up to its stop or the end of its line."""
    judged_by = rule or Stagnation(min_cycles=held.min_cycles)
    past: list[CycleFacts] = []
    reseeds = 0
    for facts in cycles_of(line, held, seed):
        if facts.cycle > line.until:
            return Ended(-1, "", reseeds, "")
        current = CycleFacts(**{**vars(facts), "reseed": reseeds})
        history = History("r", "r", RunState.RUNNING, current=current, recent=tuple(past[-WINDOW:]), reseeds=reseeds)
        found = verdict(history, judged_by)
        if found.action == "stop":
            return Ended(facts.cycle, found.kind, reseeds, found.evidence)
        reseeds += found.action == "reseed"
        past.append(current)
    raise AssertionError("runs have no end of their own")


def is_wrong(line: Line, ended: Ended) -> bool:
    """Whether a run that should go on was stopped or reseeded, or one that should stop did not, or too early."""
    if line.wants == "go":
        return ended.cycle >= 0 or ended.reseeds > 0
    return not line.since <= ended.cycle <= line.until


def cell(line: Line, runs: list[Ended]) -> str:
    """How many runs had the wrong result, with a 95 % interval, and when those that should stop did."""
    wrong = sum(is_wrong(line, one) for one in runs)
    low, high = wilson(wrong, len(runs))
    stops = [one.cycle - line.since for one in runs if one.cycle >= 0]
    when = f", {median(stops):.0f}" if stops and line.wants == "stop" else ""
    return f"{wrong / len(runs):.1%} [{low:.1%}, {high:.1%}]{when}"


def wanted(line: Line) -> str:
    return "no stop" if line.wants == "go" else f"stop within {line.until - line.since}"


def _index(number: int, place: int, seed: int) -> Ended:
    return play(LINES[number], SETTINGS[place], seed)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stagnation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=120, help="runs a line")
    parser.add_argument("--only", default="", help="lines whose name contains this")
    parser.add_argument("--held", default="", help="settings whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(arguments)
    settings = [place for place, held in enumerate(SETTINGS) if args.held in held.name]
    print(f"| run | wanted | {' | '.join(SETTINGS[place].name for place in settings)} |")
    print("|" + " --- |" * (len(settings) + 2))
    with ProcessPoolExecutor(args.jobs) as pool:
        for number, line in enumerate(LINES):
            if args.only in line.name:
                found = [
                    list(pool.map(partial(_index, number, place), range(args.seeds), chunksize=4)) for place in settings
                ]
                cells = [cell(line, runs) for runs in found]
                print(f"| {line.name} | {wanted(line)} | {' | '.join(cells)} |", flush=True)
    return 0
