"""The control `random_rewards`: a coin in place of what all parts say, which are counted as ever. (pure)"""

from dataclasses import replace
from random import Random

from workers.rewards.reward import Score


def coin(found: Score, rng: Random) -> Score:
    return replace(found, total=float(rng.randrange(2)))
