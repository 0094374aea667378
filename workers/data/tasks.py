"""A finite source of tasks: one JSON object a line, each verified by running its program before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from workers.azr.buffers import Entry, make_entry
from workers.azr.tasks import Task
from workers.sandbox import Case, Sandbox, Status
from workers.sandbox.literal import Rejected


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """One task. `inputs`: one argument list for deduction and abduction, several for induction."""

    task: Task
    program: str
    inputs: tuple[str, ...]
    message: str = ""


def read_tasks(
    path: Path, sandbox: Sandbox, tasks: Sequence[Task], is_held_out: Callable[[str], bool] = lambda program: False
) -> list[Entry]:
    """The tasks of the file in order; outputs come from running them.

    Raises LonghaulError (INPUT) with the line of what cannot be used, a held-out program among it.
    """
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise _bad(path, str(error)) from error
    lines: list[tuple[int, Line]] = []
    for number, text in enumerate(texts, start=1):
        if text.strip():
            try:
                lines.append((number, msgspec.json.decode(text, type=Line)))
            except msgspec.MsgspecError as error:
                raise _bad(path, f"line {number}: {error}") from error
    results = sandbox.check_deterministic_many([Case(line.program, line.inputs) for _, line in lines])
    entries = []
    for number, line in lines:
        try:
            if is_held_out(line.program):
                raise _bad(path, f"line {number}: the program belongs to a held-out suite, and must not be trained on")
        except (SyntaxError, ValueError) as error:
            raise _bad(path, f"line {number}: {error}") from error
    for (number, line), outcome in zip(lines, results, strict=True):
        failed = next((one for one in outcome if one.status is not Status.OK), None)
        if failed is not None:
            raise _bad(path, f"line {number}: the program gives no value: {failed.status.value} {failed.message}")
        if line.task in tasks:
            try:
                values = [one.value or "" for one in outcome]
                entries.append(make_entry(line.task, line.program, line.inputs, values, step=0, source="import",
                                          message=line.message))  # fmt: skip
            except (Rejected, SyntaxError, ValueError) as error:
                raise _bad(path, f"line {number}: {error}") from error
    if not entries:
        raise _bad(path, f"holds no task of the kinds {', '.join(tasks)}")
    return entries


def _bad(path: Path, why: str) -> LonghaulError:
    return LonghaulError(
        f"data.tasks {path}: {why}",
        kept="the run, as it is",
        next_command="correct the file, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )
