"""The reward of a new job: parts that are built in, or functions of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.display.wording import harmless
from orchestrator.new_job.mapping import ColumnMap
from profiles.errors import ExitCode, LonghaulError
from profiles.refusal import nearest
from profiles.rewards import ON_ANSWERS, ON_COMPLETIONS, is_function

OWN = "own"
"""The function in the reward file that `init` writes."""
CORRECT, TESTS = "correct", "tests"
assert CORRECT in ON_COMPLETIONS


@dataclass(frozen=True)
class ChosenReward:
    """names: as in `grpo.rewards`, but for `own`."""

    names: tuple[str, ...]

    @property
    def needs_answers(self) -> bool:
        return bool(ON_ANSWERS & set(self.names))

    @property
    def text(self) -> str:
        return ",".join(self.names)


def likely_reward(mapping: ColumnMap) -> str:
    """What suits the columns: answers are compared, tests are run, and for anything else a function judges. (pure)"""
    if mapping.answer:
        return CORRECT
    return TESTS if mapping.tests and TESTS in ON_COMPLETIONS else OWN


def reward_of(wanted: str, mapping: ColumnMap) -> ChosenReward:
    """wanted: names with commas between them. Raises LonghaulError (INPUT) for one that is unknown, for a file that is
    not there, and for a part that compares answers where the data have none."""
    names = tuple(_absolute(name.strip()) for name in wanted.split(",") if name.strip())
    for name in names:
        if name not in (OWN, *ON_COMPLETIONS) and not is_function(name):
            near = nearest(name, (OWN, *ON_COMPLETIONS))
            guess = f"; did you mean {near}?" if near else ""
            raise _refused(f"there is no reward {harmless(name)!r}{guess}", near or CORRECT)
        if (
            is_function(name)
            and name.rpartition(":")[0].endswith(".py")
            and not Path(name.rpartition(":")[0]).is_file()
        ):
            raise _refused(f"there is no file {harmless(name.rpartition(':')[0])} with a reward function", OWN)
    chosen = ChosenReward(names)
    if not names:
        raise _refused("no reward is named", likely_reward(mapping))
    if len(set(names)) < len(names):
        raise _refused(f"--reward names a part twice: {harmless(chosen.text)}", ",".join(dict.fromkeys(names)))
    if chosen.needs_answers and not mapping.answer:
        needing = ", ".join(name for name in names if name in ON_ANSWERS)
        raise _refused(
            f"the reward {needing} compares with right answers, but no column holds them (see --answer-column)", OWN
        )
    return chosen


def _absolute(name: str) -> str:
    place, _, function = name.rpartition(":")
    return f"{Path(place).expanduser().absolute()}:{function}" if place.endswith(".py") else name


def _refused(what: str, better: str) -> LonghaulError:
    known = ", ".join((*ON_COMPLETIONS, OWN, "FILE.py:FUNCTION"))
    return LonghaulError(
        what,
        kept="everything; nothing was written",
        next_command=f"the same command with --reward {better}   (there are {known}; several with commas)",
        exit_code=ExitCode.INPUT,
    )
