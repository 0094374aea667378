"""The control `random_rewards`: replaces the total reward by a coin toss. The parts are still recorded. (pure)"""

from dataclasses import replace
from random import Random

from workers.rewards.reward import Score


def coin(found: Score, rng: Random, sides: tuple[float, float] = (0.0, 1.0)) -> Score:
    """sides: the reward for each side of the coin."""
    return replace(found, total=rng.choice(sides))
