"""Whether a question counts as solved, by the reward of a run. (pure)

A number in `grpo.reward.solved_at` is compared with the total. With `full`, the parts that apply to the row have to
reach the most that they can give together: each 1, or what its options say, times its weight. A function of the user's
is taken to give 1. Penalties do not count: nearly every right answer has some. A negative weight makes a penalty of any
part.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose

from profiles.rewards import ON_ANSWERS, PENALTIES, TESTS, part_name
from profiles.schema import Grpo
from workers.problems.problem import Problem
from workers.rewards.of_profile import weights_of
from workers.rewards.registry import part_of
from workers.rewards.reward import Score


def is_solved(grpo: Grpo, problem: Problem, found: Score) -> bool:
    """Whether the reward that was found for a rollout is enough. Sums may be off by their rounding."""
    at = grpo.reward.solved_at
    if at != "full":
        return _reaches(found.total, at)
    marks = full_marks(grpo, problem)
    weights = weights_of(grpo)
    return _reaches(sum(weights[name] * found.parts.get(name, 0.0) for name in marks), sum(marks.values()))


def least_total(grpo: Grpo, problem: Problem) -> float:
    """The total of a solved question without penalties."""
    at = grpo.reward.solved_at
    return at if at != "full" else sum(full_marks(grpo, problem).values())


def full_marks(grpo: Grpo, problem: Problem) -> Mapping[str, float]:
    """What each part that counts gives to a solved question, with its weight. By the name of the part."""
    weights = weights_of(grpo)
    names = [name for name in grpo.rewards if _applies(name, problem)]
    counted = [name for name in names if weights[part_name(name)] > 0 and name not in PENALTIES]
    full = {part_name(name): weights[part_name(name)] * _full(grpo, name) for name in counted}
    return full or {part_name(name): 0.0 for name in names}  # only penalties: the most is 0


def _applies(name: str, problem: Problem) -> bool:
    """Whether the part looks at such a row. Where it does not, it gives the same to each rollout."""
    return name not in ON_ANSWERS if problem.has_tests else name != TESTS


def _full(grpo: Grpo, name: str) -> float:
    match name:
        case "format":
            return float(part_of(name, grpo.reward.options.get(name, {})).kept)
        case "cosine":  # the least of a right answer, which is more than the most of any other
            part = part_of(name, grpo.reward.options.get(name, {}))
            return float(min(part.right_short, part.right_long))
    return 1.0


def _reaches(total: float, wanted: float) -> bool:
    return total >= wanted or isclose(total, wanted, rel_tol=1e-9, abs_tol=1e-9)
