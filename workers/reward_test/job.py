"""Carries out `rewards test`: finds the functions of the files, calls them, and reports what they gave."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

from profiles.reward_files import file_at, file_of, refusal
from workers.line_contract import Checked, RewardsSpec, RewardsTested
from workers.lines import Say
from workers.reward_test.findings import Judged, report
from workers.reward_test.rows import Row, rows_of, with_completions, with_obvious
from workers.rewards.functions.protocol import Call, Given
from workers.rewards.functions.runner import Answer, Failure, FunctionRunner
from workers.verifiers.answers import is_formatted
from workers.verifiers.verify import judge


def carry_out(spec: RewardsSpec, say: Say) -> None:
    """Raises LonghaulError (INPUT) for files and functions that cannot be used."""
    cwd = Path(spec.cwd)
    names = list(dict.fromkeys(name for given in spec.functions for name in names_in(given, cwd)))
    problems = list(rows_of(spec.data, 0 if spec.completions else spec.rows, spec.columns))
    rows = with_completions(problems, Path(spec.completions)) if spec.completions else with_obvious(problems)
    rows = rows[: spec.rows or None]
    with FunctionRunner(names, spec, Path(spec.folder), cwd=cwd) as runner:
        runner.check_columns({name for row in rows for name in row.problem.columns})
        begun = {name: [_begin(runner, number, row) for row in rows] for number, name in enumerate(names)}
        judged: dict[str, list[Judged]] = {}
        done, total = 0, len(names) * len(rows)
        for name, answers in begun.items():
            judged[name] = []
            for row, futures in zip(rows, answers, strict=True):
                judged[name].append(_judged(row, [future.result() for future in futures]))
                say(Checked(done := done + 1, total))
    say(RewardsTested(report(rows, judged)))


def names_in(given: str, cwd: Path) -> list[str]:
    """The function that is named, or all of a file or module that look like rewards. Imports nothing.

    Raises LonghaulError (INPUT).
    """
    if ":" in given:
        file_of(given, cwd)
        return [given]
    file = file_at(given, given, cwd)
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 1)
        next_command = f"sed -n {line}p {file}   then correct it"
        raise refusal(given, f"a syntax error in line {line}: {getattr(error, 'msg', error)}", next_command) from error
    found = [
        f"{given}:{node.name}"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _looks_like_a_reward(node)
    ]
    if not found:
        why = "it has no function f(problem, completion, facts) and no f(prompts, completions, **columns)"
        raise refusal(given, why, f"name one: python -m orchestrator rewards test {given}:NAME")
    return found


def _looks_like_a_reward(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parameters = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
    return not node.name.startswith("_") and bool(parameters & {"completion", "completions"})


def _begin(runner: FunctionRunner, function: int, row: Row) -> list[Future[Answer]]:
    takes_groups = runner.signatures[function].takes_groups
    groups = [row.completions] if takes_groups else [(text,) for text in row.completions]
    return runner.submit([_call(function, row, texts) for texts in groups])


def _call(function: int, row: Row, texts: Sequence[str]) -> Call:
    asked = row.problem
    return Call(
        function=function,
        row=asked.line,
        prompt=asked.prompt,
        answer=asked.gold,
        messages=msgspec.to_builtins(list(asked.messages)),
        columns=asked.columns,
        rollouts=[_given(row, text) for text in texts],
    )


def _given(row: Row, text: str) -> Given:
    """There is no tokenizer: a word counts as a token, and every id is 0."""
    words = len(text.split())
    facts = {
        "tokens": words,
        "finish_reason": "stop",
        "is_truncated": False,
        "is_correct": judge(row.problem.gold, text).correct,
        "is_well_formed": is_formatted(text),
    }
    return Given(text, facts, [0] * words)


def _judged(row: Row, answers: Sequence[Answer]) -> Judged:
    outcomes = [outcome for answer in answers for outcome in answer.outcomes]
    return Judged(
        row=row,
        values=tuple(None if isinstance(one, Failure) else next(iter(one.values())) for one in outcomes),
        seconds=sum(answer.seconds for answer in answers),
        failures=tuple(one.text for one in outcomes if isinstance(one, Failure)),
    )
