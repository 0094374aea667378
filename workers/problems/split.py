"""Which problems are held out: a share by the hash of their prompts. (pure)

A place depends on the prompt alone. So it stays in any order, in a file that grew, and for every copy of a prompt.
"""

from __future__ import annotations

import hashlib
import json

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from workers.problems.problem import Problem, Problems


def is_held_out(problem: Problem, share: float) -> bool:
    """Whether the problem never trains. A larger share holds out the same problems, and more.

    Spaces around a prompt do not count, and a chat of one user message is its text.
    """
    asked = problem.prompt.strip()
    if len(problem.messages) > 1:
        asked = json.dumps([[one.role, one.content.strip()] for one in problem.messages])
    return int.from_bytes(hashlib.sha256(asked.encode()).digest()[:8]) < share * 2.0**64


def training_part(problems: Problems, share: float) -> Problems:
    """The problems that may train, numbered anew. Raises LonghaulError (INPUT) if either part would be empty."""
    return _part(problems, share, held_out=False) if share else problems


def held_out_part(problems: Problems, share: float) -> Problems:
    """The problems that never train, numbered anew, each prompt once. Raises like `training_part`."""
    found = _part(problems, share, held_out=True)
    once = {(one.prompt.strip(), one.messages): one for one in reversed(found.problems)}
    kept = [one for one in found.problems if once[one.prompt.strip(), one.messages] is one]
    return replace(found, problems=tuple(replace(one, number=number) for number, one in enumerate(kept)))


def _part(problems: Problems, share: float, *, held_out: bool) -> Problems:
    places = [is_held_out(one, share) for one in problems.problems]
    if not any(places) or all(places):
        raise LonghaulError(
            f"data.held_out = {share:g} puts {sum(places)} of {len(places)} problems of {problems.path} into the "
            "held-out part, and both parts need some",
            kept="everything; nothing was started",
            next_command="the same command with another --set data.held_out=SHARE, or with more problems",
            exit_code=ExitCode.INPUT,
        )
    found = [one for one, place in zip(problems.problems, places, strict=True) if place is held_out]
    return replace(problems, problems=tuple(replace(one, number=number) for number, one in enumerate(found)))
