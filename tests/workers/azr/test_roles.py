"""The weight of the two roles in an update: `azr.proposer_share`."""

from __future__ import annotations

from collections import Counter
from math import fsum

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiles.load import load_profile
from profiles.rules import check
from profiles.schema import Azr, Profile
from profiles.task_kinds import NAMES
from tests.profiles.variants import with_variants
from workers.azr.advantages import role_weights
from workers.azr.metrics import push_metrics
from workers.azr.rows import Row
from workers.loss.policy import clipped_token_loss
from workers.tasks.items import ROLES, Role, Task

CELLS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(ROLES)), max_size=40)
PROPOSE: tuple[Task, Role] = ("ded", "propose")
SOLVE: tuple[Task, Role] = ("ded", "solve")


def test_16_proposals_weigh_as_much_as_128_answers() -> None:
    """Worked by hand: half of 144 rows over 16, and over 128."""
    weights = role_weights([PROPOSE] * 16 + [SOLVE] * 128, 0.5)
    assert weights == [4.5] * 16 + [0.5625] * 128
    assert role_weights([PROPOSE] * 16 + [SOLVE] * 128, 0.0) == [1.0] * 144
    assert role_weights([PROPOSE] * 64 + [SOLVE] * 64, 0.5) == [1.0] * 128, "as published"


@given(CELLS, st.floats(0.01, 0.99))
def test_a_task_keeps_its_weight_and_its_roles_have_their_shares(cells: list[tuple[Task, Role]], share: float) -> None:
    weights = role_weights(cells, share)
    rows = Counter(cells)
    for task in NAMES:
        mine = [weight for weight, cell in zip(weights, cells, strict=True) if cell[0] == task]
        proposer = fsum(weight for weight, cell in zip(weights, cells, strict=True) if cell == (task, "propose"))
        # At most 40 weights, each of three roundings: the sum is off by less than 40 * 4 * 2**-53 of itself.
        assert fsum(mine) == pytest.approx(len(mine), rel=160 * 2**-53, abs=0)
        if rows[task, "propose"] and rows[task, "solve"]:
            assert proposer == pytest.approx(share * len(mine), rel=160 * 2**-53, abs=0)
        else:
            assert set(mine) <= {1.0}


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.9])
def test_a_weight_on_the_advantage_is_one_on_the_loss_clipped_or_not(advantage: float, ratio: float) -> None:
    """A power of two: the products are exact."""
    old, now = torch.zeros(1), torch.tensor([ratio]).log()
    plain, is_clipped = clipped_token_loss(now, old, torch.tensor([advantage]), clip_ratio_low=0.2, clip_ratio_high=0.2)
    weighed, clipped_too = clipped_token_loss(
        now, old, torch.tensor([4 * advantage]), clip_ratio_low=0.2, clip_ratio_high=0.2
    )
    assert torch.equal(4 * plain, weighed) and torch.equal(is_clipped, clipped_too)


def test_the_share_of_the_push_is_counted_in_tokens() -> None:
    def row(role: Role, tokens: int) -> Row:
        return Row(task="ded", role=role, group=0, prompt_ids=(1,), completion_ids=(1,) * tokens, log_probs=(),
                   finish_reason="stop", reward=0.0)  # fmt: skip

    rows = [row("propose", 10), row("solve", 30)]
    assert push_metrics(rows, [3.0, -1.0]) == {"proposer_push": 0.5}
    assert push_metrics(rows, [0.0, 0.0]) == push_metrics([], []) == {"proposer_push": 0.0}


def test_a_share_for_a_proposer_that_is_not_trained_is_refused() -> None:
    problems = check(Profile(name="p", azr=with_variants(Azr, proposer_share=0.5, train_proposer=False)))
    assert [problem.knobs[0] for problem in problems] == ["azr.proposer_share"]


@pytest.mark.parametrize("name", ["azr-0.5b", "azr-3b-qlora", "azr-3b-qlora-8gb", "azr-paper"])
def test_the_proposer_has_half_of_the_weight_as_published(name: str) -> None:
    azr = load_profile(name).profile.azr
    solved = azr.proposals_per_task * azr.group_size if azr.train_on_estimates else azr.solve_batch
    for task in azr.tasks:
        cells: list[tuple[Task, Role]] = [(task, "propose")] * azr.proposals_per_task + [(task, "solve")] * solved
        weights = role_weights(cells, azr.proposer_share)
        assert fsum(weights[: azr.proposals_per_task]) == fsum(weights[azr.proposals_per_task :])
