"""Rows 6 to 8 of the checklist, and which groups a step trains on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.schema import Grpo, Profile
from workers.grpo.advantages import Refill, Rule, group_advantages, is_uniform, refill, rule_of
from workers.grpo.rows import Collected, Row
from workers.grpo.trainer import chosen

ONE_IN_FOUR, ONE_IN_EIGHT = [1.0, 0, 0, 0], [1.0] + [0.0] * 7


def one_group(rewards: list[float], **rule: Any) -> list[float]:
    return list(group_advantages(rewards, ["g"] * len(rewards), Rule(**rule)).values)


@pytest.mark.parametrize(
    ("kind", "rewards", "expected"),
    [
        pytest.param("group_std", ONE_IN_FOUR, [1.7321] + [-0.5774] * 3, id="6 group_std of 4"),
        pytest.param("group_std", ONE_IN_EIGHT, [2.6458] + [-0.3780] * 7, id="6 group_std of 8"),
        pytest.param("mean_only", ONE_IN_FOUR, [0.75] + [-0.25] * 3, id="6 mean_only"),
        pytest.param("rloo", ONE_IN_FOUR, [1.0] + [-1 / 3] * 3, id="6 rloo: less the mean of the others"),
        pytest.param("group_std_eps", ONE_IN_FOUR, [1.73165] + [-0.57722] * 3, id="6 group_std_eps"),
        pytest.param(
            "group_std", [0.5, 0.52, 0.5, 0.5], [-0.05, 0.15, -0.05, -0.05], id="6 shaped: divided by min_std"
        ),
    ],
)
def test_row_6_advantages_of_one_group(kind: str, rewards: list[float], expected: list[float]) -> None:
    assert one_group(rewards, kind=kind) == pytest.approx(expected, abs=1e-4)


def test_row_6_the_shaped_group_deviates_by_less_than_min_std() -> None:
    assert one_group([0.5, 0.52, 0.5, 0.5], min_std=1e-9)[1] == pytest.approx(0.015 / 0.0086603, abs=1e-4)


def test_row_6_batch_std_divides_every_group_by_the_deviation_of_all_rewards() -> None:
    # Rewards 1 0 | 1 1: mean 0.75, deviation sqrt(3) / 4.
    values = group_advantages([1, 0, 1, 1], ["a", "a", "b", "b"], Rule("batch_std")).values
    assert values == pytest.approx([0.5 / 0.4330127, -0.5 / 0.4330127, 0, 0], abs=1e-6)


def test_row_6_groups_that_are_left_out_count_in_the_deviation_of_the_batch() -> None:
    """Rewards 1 0 0 0, and 28 zeros in seven groups that teach nothing: deviation sqrt(31) / 32."""
    profile = Profile(name="x", grpo=Grpo(advantage="batch_std", min_std=1e-9))
    rows = [
        Row(group=number // 4, problem=0, prompt_ids=(1,), completion_ids=(1,), finish_reason="stop",
            log_probs=(-1.0,), reward=float(number == 0))
        for number in range(32)
    ]  # fmt: skip
    trained, values, _ = chosen(Collected(rows=rows, train=(0,)), profile)
    assert trained == rows[:4]
    assert values == pytest.approx([0.75 * 32 / 31**0.5] + [-0.25 * 32 / 31**0.5] * 3, abs=1e-6)


def test_trl_s_deviation_is_that_of_a_sample() -> None:
    assert one_group(ONE_IN_FOUR, std_ddof=1) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-6)


def test_row_7_uniform_groups_are_marked_to_be_left_out_before_any_forward_pass() -> None:
    found = group_advantages([1, 1, 1, 0, 0, 0], ["a", "a", "b", "b", "c", "c"], Rule())
    assert found.kept == (False, False, True, True, False, False)
    assert found.uniform == ("a", "c")
    assert found.values == pytest.approx((0, 0, 1, -1, 0, 0))


def test_row_7_a_difference_of_rounding_is_none() -> None:
    assert is_uniform([0.1 + 0.2, 0.3])
    assert group_advantages([0.1 + 0.2, 0.3], ["a", "a"], Rule("group_std", min_std=1e-12)).uniform == ("a",)
    assert not is_uniform([0.3, 0.300002])


def test_uniform_groups_may_stay_without_an_advantage() -> None:
    found = group_advantages([1, 1], ["a", "a"], Rule(uniform="keep"))
    assert (found.values, found.kept) == ((0, 0), (True, True))


def test_row_8_the_baseline_of_uniform_groups() -> None:
    found = group_advantages([1, 1, 0, 0], ["a", "a", "b", "b"], Rule(uniform="baseline"))
    assert (found.values, found.kept) == ((0.25, 0.25, -0.25, -0.25), (True,) * 4)


def test_a_masked_rollout_counts_in_the_mean_and_is_left_out() -> None:
    found = group_advantages([1, 0, 0, 0], ["a"] * 4, Rule("mean_only"), masked=[False, True, False, False])
    assert found.values == (0.75, -0.25, -0.25, -0.25)
    assert found.kept == (True, False, True, True)


def test_rows_of_a_group_need_not_stand_together() -> None:
    together = group_advantages([1, 0, 0.5, 0.25], ["a", "a", "b", "b"], Rule()).values
    apart = group_advantages([1, 0.5, 0, 0.25], ["a", "b", "a", "b"], Rule()).values
    assert apart == (together[0], together[2], together[1], together[3])


@pytest.mark.parametrize(
    ("rewards", "groups", "said"),
    [
        ([1.0], ["a"], "one rollout"),
        ([1.0, float("nan")], ["a", "a"], "reward nan of rollout 1 is not finite"),
        ([1.0, float("inf")], ["a", "a"], "not finite"),
        ([1.0], ["a", "a"], "1 rewards for 2 rollouts"),
        ([], [], "0 rewards"),
    ],
)
def test_what_cannot_be_compared_is_refused(rewards: list[float], groups: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        group_advantages(rewards, groups, Rule())


REWARDS = st.lists(st.floats(-2, 2), min_size=2, max_size=16)


@given(REWARDS, st.sampled_from(["group_std", "group_std_eps", "mean_only", "batch_std", "rloo"]))
def test_advantages_of_a_group_sum_to_0_and_rank_as_its_rewards(rewards: list[float], kind: Any) -> None:
    values = one_group(rewards, kind=kind)
    assert sum(values) == pytest.approx(0, abs=1e-4 if kind == "group_std_eps" else 1e-6)
    if not is_uniform(rewards):
        assert values[rewards.index(max(rewards))] == max(values) > 0


@given(REWARDS)
def test_equal_rewards_never_make_an_advantage_whatever_a_float_mean_says(rewards: list[float]) -> None:
    assert one_group([rewards[0]] * 12) == [0.0] * 12


@given(st.lists(REWARDS, min_size=1, max_size=4))
def test_a_group_s_advantages_do_not_depend_on_the_other_groups(groups: list[list[float]]) -> None:
    rows = [(reward, number) for number, rewards in enumerate(groups) for reward in rewards]
    found = group_advantages([reward for reward, _ in rows], [number for _, number in rows], Rule())
    assert list(found.values) == [value for rewards in groups for value in one_group(rewards)]


def test_the_profile_says_the_rule() -> None:
    assert rule_of(Grpo(advantage="mean_only", min_std=0.2, uniform="keep")) == Rule("mean_only", 0.2, "keep")


U, T = True, False
"""A uniform group, and one that teaches something."""


@pytest.mark.parametrize(
    ("groups", "knobs", "rounds", "expected"),
    [
        pytest.param([T, T], {}, 0, Refill((0, 1), 0), id="all teach"),
        pytest.param([U, T], {}, 0, Refill((1,), 0), id="a uniform one is left out"),
        pytest.param([U, U], {}, 0, Refill((), 0), id="7 none teaches: no update"),
        pytest.param([U, T], {"uniform": "keep"}, 0, Refill((0, 1), 0), id="a uniform one is kept"),
        pytest.param([U, T], {"dynamic_sampling": True}, 0, Refill((), 1), id="dynamic: one more is drawn"),
        pytest.param([U, U], {"dynamic_sampling": True}, 2, Refill((), 2), id="dynamic: in the last round too"),
        pytest.param([U, T, U], {"dynamic_sampling": True}, 3, Refill((1,), 0), id="dynamic: rounds are used up"),
        pytest.param([U, U, U], {"dynamic_sampling": True}, 3, Refill((), 0), id="dynamic: none was found"),
        pytest.param([U, T, T], {"dynamic_sampling": True}, 1, Refill((1, 2), 0), id="dynamic: enough"),
        pytest.param([T, T, T], {"dynamic_sampling": True}, 1, Refill((0, 1), 0), id="dynamic: no more than wanted"),
    ],
)
def test_which_groups_are_trained_on_and_how_many_more_are_drawn(
    groups: list[bool], knobs: dict[str, Any], rounds: int, expected: Refill
) -> None:
    assert refill(groups, Grpo(groups_per_step=2, max_extra_rounds=3, **knobs), rounds) == expected
