"""The problems that a profile names: one file, or a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.rewards import ON_ANSWERS, TESTS
from profiles.schema import Profile
from workers.problems.problem import Problems
from workers.problems.reader import problems_of_rows, read_problems
from workers.problems.rows import Reading


def problems_of(
    profile: Profile,
    folder: Path | None,
    *,
    with_tests: bool = False,
    needs_answer: bool = True,
    needs_prompt: bool = True,
    revisions: Mapping[str, str] | None = None,
) -> Problems:
    """All problems of the profile, those of a file after those of the file before it.

    folder: of data files, read if the profile names no file. with_tests, needs_answer, needs_prompt: as in `Reading`.
    revisions: hub name -> commit, for data sets that a run has read before. Raises LonghaulError (INPUT).
    """
    names = profile.data.names or ((str(folder),) if folder else ())
    if not names:
        raise LonghaulError(
            "no problems are named: data.tasks is empty, and so is the environment variable LONGHAUL_DATA",
            kept="everything; nothing was started",
            next_command="python -m orchestrator run --set data.tasks=problems.jsonl   (lines of prompt and answer)",
            exit_code=ExitCode.INPUT,
        )
    found = [
        read_problems(
            name,
            profile.grpo,
            with_tests=with_tests,
            columns=profile.data.columns,
            needs_answer=needs_answer,
            needs_prompt=needs_prompt,
            revision=(revisions or {}).get(name, ""),
        )
        for name in names
    ]
    return found[0] if len(found) == 1 else _mixed(dict(zip(names, found, strict=True)))


def grpo_problems(
    profile: Profile,
    folder: Path | None,
    revisions: Mapping[str, str] | None = None,
    own_rows: Sequence[Mapping[str, Any]] | None = None,
) -> Problems:
    """All problems as GRPO reads them: rows need what the parts of the reward need. Arguments as of `problems_of`.

    own_rows: those that an environment brings; they are read if the profile names no file.
    """
    rewards, environment = {*profile.grpo.rewards}, profile.grpo.environment.name
    needs_answer, with_tests = bool(ON_ANSWERS & rewards), TESTS in rewards
    if own_rows is not None and not profile.data.names:
        how = Reading(profile.data.columns, with_tests, needs_answer, needs_prompt=False)
        rows = ((number, "", row) for number, row in enumerate(own_rows, start=1))
        return problems_of_rows(Path(f"the rows of {environment}"), rows, profile.grpo, how)
    return problems_of(
        profile,
        folder,
        with_tests=with_tests,
        needs_answer=needs_answer,
        needs_prompt=not environment,
        revisions=revisions,
    )


def _mixed(parts: Mapping[str, Problems]) -> Problems:
    """All of them in order, each with its file. (pure)"""
    problems = [replace(one, source=name) for name, part in parts.items() for one in part.problems]
    return Problems(
        Path(" + ".join(parts)),
        tuple(replace(one, number=number) for number, one in enumerate(problems)),
        tuple(replace(one, source=name) for name, part in parts.items() for one in part.left_out),
        {column: kind for part in parts.values() for column, kind in part.not_json.items()},
        {name: commit for part in parts.values() for name, commit in part.revisions.items()},
    )


def sizes_of(problems: Problems, names: tuple[str, ...]) -> list[int]:
    """Problems of each file, in order. Raises LonghaulError (INPUT) if a file of a mixture has none left."""
    sizes = [sum(one.source == name for one in problems.problems) for name in names]
    if empty := [name for name, size in zip(names, sizes, strict=True) if not size]:
        raise LonghaulError(
            f"the mixture has nothing to draw from {', '.join(empty)}: all its problems are held out or too long",
            kept="everything; nothing was started",
            next_command="python -m orchestrator data preview --profile PROFILE   (says why each row is left out)",
            exit_code=ExitCode.INPUT,
        )
    return sizes
