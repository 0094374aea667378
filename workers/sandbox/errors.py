"""User-facing errors of the sandbox itself."""

from __future__ import annotations

from profiles.errors import ExitCode, LonghaulError


class SandboxRefused(LonghaulError):
    """The machine lacks a required layer; no program was run."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            reason,
            kept="no program was run",
            next_command="python -m workers.sandbox --layers   # which layers this machine has, and why not; "
            "a profile with [sandbox] allow_weak = true runs programs all the same",
            exit_code=ExitCode.PERMISSION,
        )
