"""Builds the parts of the reward that a profile asks for, in order. (pure)

Self-play follows arXiv 2505.03335, section 3. Where paper and code differ, the default is what the published runs used.
Infrastructure failures never reach this code: a rollout that cannot be judged fairly is dropped, not counted as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.rewards import is_slow, part_name
from profiles.schema import Azr, Grpo
from workers.rewards.format import Format
from workers.rewards.learnability import Learnability
from workers.rewards.registry import part_of
from workers.rewards.repeat import Repeat
from workers.rewards.reward import ProblemCase, ProposerCase, Reward, SlowReward, SolverCase
from workers.rewards.verifier import Verifier

INVALID = -1.0
"""Self-play's reward for malformed text, or for a proposal that is not a valid task."""
WRONG = -0.5
"""Self-play's reward for a well-formed but wrong answer."""
SELF_PLAY_COIN = (1.0, WRONG)
"""Self-play's rewards for the two sides of the coin, under `random_rewards`."""


@dataclass(frozen=True)
class RoleRewards:
    """Parts for each role of self-play."""

    solve: tuple[Reward[SolverCase], ...] = ()
    propose: tuple[Reward[ProposerCase], ...] = ()

    def __add__(self, other: RoleRewards) -> RoleRewards:
        return RoleRewards((*self.solve, *other.solve), (*self.propose, *other.propose))


NO_PARTS = RoleRewards()


@dataclass(frozen=True)
class GrpoRewards:
    """The parts of GRPO's reward, without those of a user's own class.

    parts: those that are computed at once. slow: the others. weights: name -> weight, in the profile's order.
    """

    parts: tuple[Reward[ProblemCase], ...]
    slow: tuple[SlowReward, ...]
    weights: Mapping[str, float]


def grpo_rewards_of(grpo: Grpo, slow: Sequence[SlowReward] = ()) -> GrpoRewards:
    """slow: the parts among `grpo.rewards` that are not computed at once. Raises as `quick_parts`."""
    parts = quick_parts(grpo)
    assert len(grpo.rewards) == len(parts) + len(slow), "every part has somebody who computes it"
    return GrpoRewards(parts, tuple(slow), weights_of(grpo))


def quick_parts(grpo: Grpo) -> tuple[Reward[ProblemCase], ...]:
    """The parts that are computed at once. Raises LonghaulError (INPUT) for options that a part does not take."""
    options = grpo.reward.options
    return tuple(part_of(name, options.get(name, {})) for name in grpo.rewards if not is_slow(name))


def weights_of(grpo: Grpo) -> dict[str, float]:
    """The weight of each part by its name."""
    names = [part_name(name) for name in grpo.rewards]
    return dict(zip(names, grpo.reward_weights or [1.0] * len(names), strict=True))


def role_rewards_of(azr: Azr) -> RoleRewards:
    """The parts for each role. Malformed text earns INVALID and nothing else. If it still contains a valid task, its
    proposer loses the reward but the task is kept."""
    form = Format(kept=0.0, broken=INVALID)
    return RoleRewards(
        solve=(form, Verifier(wrong=WRONG, needs_form=True)),
        propose=(form, Learnability(azr.proposer_zero_reward), Repeat(azr.repeat_reward)),
    )
