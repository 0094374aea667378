"""The parts that a profile of GRPO asks for, in order. (pure)"""

from profiles.schema import Grpo
from workers.rewards.format import Format
from workers.rewards.length import Length
from workers.rewards.reward import Reward
from workers.rewards.verifier import Verifier


def rewards_of(grpo: Grpo) -> tuple[Reward, ...]:
    return Verifier(), Format(grpo.format_reward), Length(grpo.length_penalty)
