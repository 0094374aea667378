"""Programs with tests: published solutions and their mutants, and tests/s beside the sandbox's own programs/s.

    LONGHAUL_DATA=folder python -m benchmarks code_tests             verdicts, and the table of rates
    LONGHAUL_DATA=folder python -m benchmarks code_tests --mutants 2000

HumanEval and MBPP as published. A mutant has one operator, comparison, constant or condition changed; some do what the
original does, so not all can fail. CPU is user and system time of this process and all its descendants; compare it
rather than rates where other work has the cores too.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.code_server import cpu_of
from benchmarks.sandbox import span
from profiles.schema import Sandbox as SandboxKnobs
from workers.problems.test_rows import unit_tests_of
from workers.sandbox import Sandbox
from workers.verifiers.programs import Graded, Limit, judge_programs, sandbox_for
from workers.verifiers.unit_tests import Pair, Tests

FILES = ("HumanEval.jsonl", "mbpp.jsonl")
LIMIT = Limit(seconds=10.0)
QUICK_S = 0.1
SPOILED = """
_right = {name}
def _spoiled(value):
    if value is None or isinstance(value, str):
        return (value or "") + "?"
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else None
def {name}(*given, **named):
    return _spoiled(_right(*given, **named))
"""
"""Added to a program: each value of its function becomes another one."""
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

Asked = tuple[str, Tests]


def published(name: str) -> list[tuple[str, Asked]]:
    """(name of the tested function, (solution, tests)) of each line."""
    path = Path(os.environ.get("LONGHAUL_DATA", "")) / name
    if not path.is_file():
        raise SystemExit(f"LONGHAUL_DATA must name a folder with {' and '.join(FILES)}")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        tests = unit_tests_of(row)
        assert tests is not None
        program = row["code"] if "code" in row else row["prompt"] + row["canonical_solution"]
        found.append((row.get("entry_point") or called(program, str(tests[0])), (program, tests)))
    return found


def called(program: str, test: str) -> str:
    """The function of the program that the test names first."""
    defined = {node.name for node in parsed(program).body if isinstance(node, ast.FunctionDef)}
    names = [node.id for node in ast.walk(parsed(test)) if isinstance(node, ast.Name)]
    return next(name for name in names if name in defined)


def parsed(program: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in the published texts
        return ast.parse(program)


class Mutating(ast.NodeTransformer):
    """Changes the place with this number, in the order of the tree; counts all places."""

    def __init__(self, place: int) -> None:
        self.place, self.count = place, 0

    def _is_here(self) -> bool:
        self.count += 1
        return self.count - 1 == self.place

    def visit(self, node: ast.AST) -> ast.AST:
        found = self.generic_visit(node)
        if type(node) in SWAPPED and self._is_here():
            return SWAPPED[type(node)]()
        if isinstance(node, ast.Constant) and type(node.value) is int and self._is_here():
            return ast.Constant(node.value + 1)
        if isinstance(node, ast.If) and self._is_here():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return found


def mutants(program: str) -> Iterator[str]:
    """Every program that differs in one place."""
    counting = Mutating(-1)
    counting.visit(parsed(program))
    for place in range(counting.count):
        yield ast.unparse(ast.fix_missing_locations(Mutating(place).visit(parsed(program))))


def verdicts(sandbox: Sandbox, num_mutants: int) -> None:
    """How many published solutions pass, and how many changed ones fail."""
    print("| data | solutions pass | with spoiled values fail | mutants fail |\n| --- | --- | --- | --- |")
    for name in FILES:
        rows = published(name)
        solutions = [asked for _, asked in rows]
        spoiled = [(program + SPOILED.format(name=entry), tests) for entry, (program, tests) in rows]
        changed = [(mutant, tests) for program, tests in solutions for mutant in mutants(program)]
        changed = Random(0).sample(changed, min(num_mutants, len(changed)))
        right = judged(sandbox, solutions)
        wrong = judged(sandbox, spoiled)
        killed = judge_programs(sandbox, changed, Limit(seconds=1.0))
        row = [(sum(one.is_right for one in right), right), (sum(not one.is_right for one in wrong), wrong)]
        row += [(sum(not one.is_right for one in killed), killed)]
        print(f"| {name} | " + " | ".join(f"{count} of {len(found)}" for count, found in row) + " |", flush=True)
        for one in right:
            if not one.is_right:
                print(f"  not right: {one.reason}")


def judged(sandbox: Sandbox, asked: Sequence[Asked]) -> list[Graded]:
    return judge_programs(sandbox, asked, LIMIT)


ADDS = "def add(a, b):\n    return a + b\n# {number}"
READS = "a, b = map(int, input().split())\nprint(a + b)\n# {number}"


def statements(count: int) -> list[Asked]:
    """Programs of three asserts each, as MBPP has."""
    tests = tuple(f"assert add({number}, 1) == {number + 1}" for number in range(3))
    return [(ADDS.format(number=number), tests) for number in range(count // 3)]


def pairs(count: int) -> list[Asked]:
    """Programs of ten inputs and outputs each, as APPS has."""
    tests = tuple(Pair(f"{number} 1\n", f"{number + 1}\n") for number in range(10))
    return [(READS.format(number=number), tests) for number in range(count // 10)]


def rates(sandbox: Sandbox, count: int, repeats: int) -> None:
    """Tests/s of short and published programs, in interleaved rounds; and programs/s of the sandbox alone."""
    ways: dict[str, list[Asked]] = {
        "sandbox alone: programs of one test": [
            (ADDS.format(number=number), ("assert add(1, 2) == 3",)) for number in range(count // 3)
        ],
        "short programs, 3 asserts each": statements(count),
        "short programs, 10 inputs and outputs each": pairs(count),
    }
    solutions = [asked for _, asked in published("mbpp.jsonl")]
    quick = judge_programs(sandbox, solutions, Limit(seconds=QUICK_S))
    few = [asked for asked, one in zip(solutions, quick, strict=True) if one.is_right]
    ways["MBPP's published solutions"] = solutions
    ways[f"the {len(few)} of them that need less than {QUICK_S:g} s a test"] = few
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    loads, me = [], psutil.Process()
    for _ in range(repeats):
        for name, asked in ways.items():
            loads.append(os.getloadavg()[0])
            num_tests = sum(len(tests) for _, tests in asked)
            began, before = time.perf_counter(), cpu_of(me)
            assert all(one.is_right for one in judge_programs(sandbox, asked, LIMIT, needs_all=False))
            wall = time.perf_counter() - began
            found[name].append((num_tests / wall, (cpu_of(me) - before) / num_tests * 1000))
    system = f"Python {platform.python_version()}, Linux {platform.release()}, {len(os.sched_getaffinity(0))} CPUs"
    print(f"\n{system}, load {min(loads):.1f} to {max(loads):.1f}, {repeats} rounds\n")
    print("| what | tests/s | CPU ms of a test |\n| --- | --- | --- |")
    for name, measures in found.items():
        columns = span([rate for rate, _ in measures], ".0f"), span([cpu for _, cpu in measures], ".2f")
        print(f"| {name} | {' | '.join(columns)} |")


def main(arguments: list[str] | None = None) -> None:
    """Verdicts, then rates."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks code_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mutants", type=int, default=1000, help="of each data set, drawn at random; 0: skip verdicts")
    parser.add_argument("--tests", type=int, default=1500, help="of each round")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=0, help="programs side by side; 0: as many as cores")
    options = parser.parse_args(arguments)
    with sandbox_for(SandboxKnobs(allow_weak=True), LIMIT, options.jobs) as sandbox:
        if options.mutants:
            verdicts(sandbox, options.mutants)
        rates(sandbox, options.tests, options.repeats)


if __name__ == "__main__":
    main()
