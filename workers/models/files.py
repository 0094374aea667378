"""Errors for model files that are missing, torn or mismatched. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError


class ModelFileError(LonghaulError):
    """A file of a model directory cannot be used (INPUT). The remedy is to look at the directory."""


def unusable(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"model file {path} {why}",
        kept="the run, unchanged",
        next_command="put the file back or set model.path, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )


@contextmanager
def of_no_run(directory: str) -> Iterator[None]:
    """Rewrite the error for a model that belongs to no run: no knob can fix it."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(
            error.what,
            kept="everything; nothing was asked",
            next_command=f"ls -l {directory}   (fix what is wrong with it), then the same command",
            exit_code=ExitCode.INPUT,
        ) from error
