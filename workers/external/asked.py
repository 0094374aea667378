"""The answer of a worker's `check` module to the master, which asks before it submits anything."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json
from profiles.schema import Profile

NOTHING = "everything; nothing was submitted"


def refused(what: str, next_command: str) -> LonghaulError:
    """What a `check` raises."""
    return LonghaulError(what, kept=NOTHING, next_command=next_command, exit_code=ExitCode.INPUT)


def answer(check: Callable[[Profile], object]) -> int:
    """Check the profile on stdin: exit code 0, or that of the refusal, which goes to stdout as JSON."""
    try:
        check(from_json(sys.stdin.read()))
    except LonghaulError as error:
        told = {"what": error.what, "kept": error.kept, "next_command": error.next_command}
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        return int(error.exit_code)
    return 0
