"""Our problems as the parquet files that verl reads, asked in the words of the profile's prompt style."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.verl import OWN_SERVER
from workers.models.load import Tokenizer
from workers.problems.of_profile import problems_of
from workers.problems.problem import Problem, Problems
from workers.problems.reader import drop_long, first
from workers.suites.answer_format import AnswerFormat
from workers.suites.data_files import data_folder
from workers.suites.question import MATHS, WordProblem
from workers.verifiers.unit_tests import for_code_server, read_tests
from workers.verl.reward import CODE

TRAINING = "problems"
"""`data_source` of problems with answers."""


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Raises LonghaulError (INPUT) without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise LonghaulError(
            "verl reads problems from parquet files, which needs pyarrow",
            kept="everything; nothing was started",
            next_command="bash scripts/install-verl.sh",
            exit_code=ExitCode.INPUT,
        ) from error
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def row(source: str, prompt: str, gold: str, index: int) -> dict[str, Any]:
    """What verl knows of one problem. gold: for its reward function. index: how we know it again. (pure)"""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": index},
    }


def training_problems(profile: Profile, answer_format: AnswerFormat, tokenizer: Tokenizer) -> Problems:
    """Those that the profile names, without what is too long. Raises LonghaulError (INPUT), also where problems have
    tests and nobody could judge programs."""
    found = problems_of(profile, data_folder(profile.validation.data), with_tests=True)
    if any(one.has_tests for one in found.problems):
        _refuse_unjudged(profile, found.path)
    usable = drop_long(
        found,
        lambda one: len(tokenizer.encode(answer_format.ask(MATHS, as_item(one)))),
        profile.sampling.max_prompt_tokens,
    )
    return first(usable, profile.grpo.problems)


def _refuse_unjudged(profile: Profile, path: Path) -> None:
    """Problems with tests need somebody who judges programs, and a prompt that does not ask for a number in a box."""
    if not profile.verl.code_server:
        why = "and verl.code_server names nothing that judges programs"
        knob = f"verl.code_server={OWN_SERVER}   (or the URL of a server that all hosts reach)"
    elif profile.model.prompt_style != "verbatim":
        why = f'and model.prompt_style = "{profile.model.prompt_style}" asks for an answer in a box'
        knob = "model.prompt_style=verbatim   (the file says the whole prompt)"
    else:
        return
    raise LonghaulError(
        f"problems of {path.name} have tests, {why}",
        kept="everything; nothing was started",
        next_command=f"python -m orchestrator run --set {knob}",
        exit_code=ExitCode.INPUT,
    )


def as_item(problem: Problem) -> WordProblem:
    """Who is right is the verifier's business, so the answer format gets no answer. (pure)"""
    return WordProblem(problem.prompt.rstrip("\n"), Fraction(0), messages=problem.messages)


def training_rows(problems: Problems, answer_format: AnswerFormat) -> list[dict[str, Any]]:
    """(pure)"""
    return [
        row(
            CODE if one.has_tests else TRAINING,
            answer_format.ask(MATHS, as_item(one)),
            json.dumps(for_code_server(read_tests(one.gold))) if one.has_tests else one.gold,
            one.number,
        )
        for one in problems.problems
    ]
