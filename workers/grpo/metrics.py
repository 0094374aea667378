"""What is counted in a step of GRPO, as a flat dict of floats. (pure)

| name | meaning |
| --- | --- |
| reward, reward/correct, reward/format, reward/length | mean reward of all rollouts; its parts |
| accuracy, answered | share of rollouts that are right; in which an answer was found |
| reward_std, group_spread | deviation of all rewards; mean of the groups' own deviations |
| groups, extra_rounds | problems drawn; rounds of further draws in place of uniform groups |
| uniform_share, all_right, all_wrong | share of the groups without a difference; always, never solved |
| skipped_share, rollouts_kept | share of the groups that the update did not use; rollouts that it did |
| tokens_mean, tokens_min, tokens_max | length of completions |
| truncated | share of rollouts that ran into the length limit |
| rollouts_not_finite | with a log-prob or entropy that is NaN or infinite: counted above, and not trained on |
| distinct_share | different completions per rollout, within groups: 1 is all different |
| tokens_per_s, train_tokens_per_s | completion tokens a second of generation; of all the update did |
| loss, grad_norm | sums over the updates of the step; highest norm before clipping |
| kept_tokens | share of the tokens in the update that the entropy mask keeps |
| entropy | mean over all completion tokens of the rollouts in the update, in nats; masked or not |
| entropy_kept, entropy_threshold | mean of those that the entropy mask keeps; over which they are kept |
| clip_fraction, clip_low, clip_high | share of the kept tokens whose gradient is cut; at the lower, the upper bound |
| ratio_mean, ratio_max | policy in training over the one before the step's first update, of tokens in the loss |
| kl | k3 to the model without adapter |
| mismatch_mean, mismatch_max, mismatch_kl | |log-ratio| to what the engine said, k3; before the first update alone |
| mismatch_tokens | how many these are; with an entropy mask only tokens that it keeps |
| tis_weight, tis_capped | importance weights: their mean, the share that was cut |
| update_skipped | 1: no group taught anything, and nothing was changed |
| updates_done, silent_steps | steps with an update so far; steps in a row without |
| problems, problems_drawn | that there are; drawn since the run began, repeats among them |
| epoch; stage, stages, stage_steps | how often the file was read; where the curriculum is, of how many |
| memory/PHASE/... | peaks of rollout, score and train: workers/memory/phases.py |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import fsum, sqrt
from statistics import fmean

from workers.grpo.rows import Row
from workers.grpo.uniformity import StepFacts

Metrics = dict[str, float]


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def deviation(values: Sequence[float]) -> float:
    middle = fsum(values) / len(values)
    return sqrt(fsum((value - middle) ** 2 for value in values) / len(values))


def groups_of(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Rows by group, in the order of their first row."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def collected_metrics(rows: Sequence[Row], uniform: Collection[int], rounds: int) -> Metrics:
    """Of all rollouts of a step. uniform: groups whose rewards make no difference."""
    groups = list(groups_of(rows).values())
    lengths = [len(row.completion_ids) for row in rows]
    return {
        "reward": mean(row.reward for row in rows),
        "reward/correct": mean(row.is_correct for row in rows),
        "reward/format": mean(row.format_reward for row in rows),
        "reward/length": -mean(row.length_penalty for row in rows),
        "reward_std": deviation([row.reward for row in rows]),
        "group_spread": mean(deviation([row.reward for row in group]) for group in groups),
        "accuracy": mean(row.is_correct for row in rows),
        "answered": mean(row.is_answered for row in rows),
        "groups": float(len(groups)),
        "extra_rounds": float(rounds),
        "uniform_share": len(uniform) / len(groups),
        "all_right": mean(all(row.is_correct for row in group) for group in groups),
        "all_wrong": mean(not any(row.is_correct for row in group) for group in groups),
        "truncated": mean(row.finish_reason == "length" for row in rows),
        "rollouts_not_finite": float(sum(not row.is_finite for row in rows)),
        "tokens_mean": mean(lengths),
        "tokens_min": float(min(lengths)),
        "tokens_max": float(max(lengths)),
        "distinct_share": mean(len({row.completion_ids for row in group}) / len(group) for group in groups),
    }


def facts_of(metrics: Metrics) -> StepFacts:
    """What the rule about steps that teach nothing looks at."""
    groups = int(metrics["groups"])
    return StepFacts(
        groups=groups,
        uniform=round(metrics["uniform_share"] * groups),
        accuracy=metrics["accuracy"],
        truncated_share=metrics["truncated"],
        unanswered_share=1 - metrics["answered"],
        distinct_share=metrics["distinct_share"],
    )
