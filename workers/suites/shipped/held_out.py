"""The held-out part of a GRPO run's own problems (`data.held_out`), judged by the rules of its verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.suites import FOR_PROBLEMS
from workers.suites.source import OfRun

if TYPE_CHECKING:
    from workers.suites.question import Question


def questions(profile: Profile) -> list[Question]:
    """Named by the hash of their prompts, so a question keeps its name in a file that grew; strata by file.

    Raises LonghaulError (INPUT) if a problem has no answer, since nothing else judges it here.
    """
    from fractions import Fraction

    from workers.problems.of_profile import problems_of
    from workers.problems.split import held_out_part
    from workers.rng import derive
    from workers.suites.data_files import data_folder, short_hash
    from workers.suites.question import Question, WordProblem

    found = held_out_part(problems_of(profile, data_folder(profile.validation.data)), profile.data.held_out)
    questions = []
    for one in found.problems:
        if not one.gold:
            raise LonghaulError(
                f"line {one.line} of {one.source or found.path} has no answer, and the suite held-out compares answers",
                kept="everything; nothing was asked yet",
                next_command="the same command with other validation.suites",
                exit_code=ExitCode.INPUT,
            )
        name = short_hash(f"{one.prompt.strip()}\0{one.messages!r}" if one.messages else one.prompt.strip())
        item = WordProblem(one.prompt.rstrip("\n"), Fraction(0), one.gold, one.messages)
        questions.append(Question(name, "maths", item, derive(0, 0, f"held-out/{name}"), one.source))
    return questions


SUITE = OfRun(
    about="a problem of the run's own data that never trains; right is what its verifier calls the same",
    tasks=("maths",),
    workers=("grpo",),
    styles=FOR_PROBLEMS,
    asks_own_data=True,
    ask=questions,
)
