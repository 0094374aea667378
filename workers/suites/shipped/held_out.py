"""The held-out part of a GRPO run's own problems (`data.held_out`), judged by the run's verifier or by its reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.schema import Grpo, Profile
from profiles.suites import FOR_PROBLEMS
from workers.suites.source import OfRun

if TYPE_CHECKING:
    from workers.problems.problem import Problem
    from workers.suites.question import Question

OWN = "own"
"""Under this name the scores of rows are listed that neither an answer nor tests alone decide on."""


def questions(profile: Profile) -> list[Question]:
    """Named by the hash of their prompts, so a question keeps its name in a file that grew; strata by file.

    With the one part `correct` answers are compared; any other reward judges by itself. Raises LonghaulError (INPUT)
    for rows that training would refuse too, and for a reward function whose file is not there.
    """
    from workers.environments.of_profile import own_rows_of
    from workers.problems.of_profile import grpo_problems
    from workers.problems.split import held_out_part
    from workers.suites.data_files import data_folder

    folder = data_folder(profile.validation.data)
    found = held_out_part(grpo_problems(profile, folder, own_rows=own_rows_of(profile)), profile.data.held_out)
    rule = "" if compares_answers(profile.grpo) else rule_of(profile.grpo)
    is_played = bool(profile.grpo.environment.name)
    return [_question(one, rule, is_played=is_played) for one in found.problems]


def compares_answers(grpo: Grpo) -> bool:
    """Whether the right answer says all: then a score means the same in every run on the same data. (pure)"""
    return grpo.rewards == ("correct",) and grpo.reward.solved_at == "full"


def rule_of(grpo: Grpo) -> str:
    """A hash of everything that decides how much an answer earns, and whether that is enough.

    Raises LonghaulError (INPUT) if the file of a function is not there.
    """
    import json
    from pathlib import Path

    from profiles.reward_files import hash_of
    from profiles.rewards import is_function, part_name
    from workers.environments.registry import class_of
    from workers.suites.data_files import short_hash

    environment = grpo.environment
    own = [*grpo.rewards, class_of(environment.name, {})[0]] if environment.name else grpo.rewards
    parts = [(part_name(one), hash_of(one, Path.cwd()) if is_function(one) else "") for one in own]
    how: list[object] = [
        grpo.reward_weights,
        grpo.reward.options,
        grpo.reward.solved_at,
        grpo.verifier,
        grpo.lenient_answers,
    ]
    if environment.name:
        how += [part_name(environment.name), environment.options, environment.max_turns]
    return short_hash(json.dumps([parts, how], sort_keys=True))


def _question(one: Problem, rule: str, *, is_played: bool) -> Question:
    """rule: of the reward that judges; empty: the right answer does. is_played: an environment says what the prompt
    is."""
    from fractions import Fraction

    from workers.rng import derive
    from workers.suites.data_files import short_hash
    from workers.suites.question import CODE, MATHS, CodeProblem, Question, Rewarded, WordProblem

    name = short_hash(f"{one.prompt.strip()}\0{one.messages!r}" if one.messages else one.prompt.strip())
    seed, text = derive(0, 0, f"held-out/{name}"), one.prompt.rstrip("\n")
    if not rule:
        return Question(name, MATHS, WordProblem(text, Fraction(0), one.gold, one.messages), seed, one.source)
    judged = Rewarded(one, rule)
    if one.has_tests:
        return Question(name, CODE, CodeProblem(text, messages=one.messages), seed, one.source, rewarded=judged)
    item = WordProblem(text, Fraction(0), messages=() if is_played else one.messages)
    return Question(name, MATHS, item, seed, one.source, OWN, judged)


SUITE = OfRun(
    about="a problem of the run's own data that never trains; right is what its verifier calls the same, or what its "
    "reward calls solved",
    tasks=("maths", "code", OWN),
    workers=("grpo",),
    styles=FOR_PROBLEMS,
    asks_own_data=True,
    ask=questions,
)
