"""The tests of a line of a suite's data file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.errors import ExitCode, LonghaulError
from workers.problems.test_rows import unit_tests_of
from workers.suites.data_files import DataFile
from workers.verifiers.unit_tests import BadTests, Tests


def tests_of_line(file: DataFile, line: int, row: Mapping[str, Any]) -> Tests:
    """Raises LonghaulError (INPUT) that names the line if its tests cannot be run."""
    try:
        found = unit_tests_of(row)
    except BadTests as error:
        raise bad_line(file, line, str(error)) from error
    if found is None:
        raise bad_line(file, line, "it has no tests")
    return found


def bad_line(file: DataFile, line: int, why: str) -> LonghaulError:
    return LonghaulError(
        f"{file.name} line {line}: {why}",
        kept="everything; nothing was asked yet",
        next_command=f"download {file.url} again",
        exit_code=ExitCode.INPUT,
    )
