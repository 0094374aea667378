"""What is said of a model's file that is missing, torn, or does not fit. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import ExitCode, LonghaulError


class ModelFileError(LonghaulError):
    """One of the files of a model directory cannot be used (INPUT); to look at the directory helps."""


def unusable(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"model file {path} {why}",
        kept="the run, as it is",
        next_command="put the file back or set model.path, then: python -m orchestrator run",
        exit_code=ExitCode.INPUT,
    )
