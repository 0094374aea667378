"""Metrics of a step, each declared once: its name, its unit, what it means. (pure)

Trainers report them in the event `step`, screens and trackers show them by these names. ROLE is propose or solve, TASK
a kind of task, PHASE, STAGE, REASON and NAME are words. `python -m profiles.metrics > docs/metrics.md` makes the
list for people.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

SHARE, TOKENS, COUNT, BYTES, SECONDS, REWARD, NATS = "share", "tokens", "count", "bytes", "s", "reward", "nats"
NO_UNIT = "-"
RATE = "tokens/s"


@dataclass(frozen=True)
class Metric:
    """name: with ROLE_TASK, TASK, PHASE, STAGE or REASON in it, a whole family."""

    name: str
    unit: str
    meaning: str


_COMMON = (
    Metric("seconds", SECONDS, "the whole step"),
    Metric("seconds/STAGE", SECONDS, "a part of the step"),
    Metric("tokens", TOKENS, "completion tokens that the update was given"),
    Metric("oom_retries", COUNT, "how often the run has repeated a step with less since it began"),
    Metric("rss_bytes", BYTES, "resident memory of the worker"),
    Metric("peak_rss_bytes", BYTES, "its highest"),
    Metric("memory/PHASE/allocated", BYTES, "highest of the phase, in tensors on the GPU"),
    Metric("memory/PHASE/reserved", BYTES, "highest of the phase, held by PyTorch's allocator"),
    Metric("memory/PHASE/device", BYTES, "highest of the phase, of the whole GPU"),
    Metric("memory/PHASE/host", BYTES, "highest of the phase, resident, where there is no GPU"),
    Metric("memory/PHASE/expected", BYTES, "what the planner expects of the phase"),
    Metric("reward", REWARD, "mean of all rollouts that were judged"),
    Metric("truncated", SHARE, "rollouts that ran into the length limit"),
    Metric("tokens_mean", TOKENS, "mean length of a completion"),
    Metric("distinct_share", SHARE, "different completions within a group, averaged: 1 is all different"),
    Metric("rollouts_not_finite", COUNT, "rollouts with a log-prob or entropy that is NaN or infinite: not trained on"),
    Metric("update_skipped", COUNT, "1: there was nothing to learn from, and nothing was changed"),
    Metric("loss", NO_UNIT, "sum over the updates of the step"),
    Metric("grad_norm", NO_UNIT, "highest norm of a gradient before clipping"),
    Metric("learning_rate", NO_UNIT, "of all updates of the step"),
    Metric("entropy", NATS, "mean over all completion tokens in the update, masked or not"),
    Metric("clip_fraction", SHARE, "tokens in the loss whose gradient is cut"),
    Metric("mismatch_mean", NATS, "mean |log-ratio| of trainer to engine, before the first update alone"),
    Metric("mismatch_max", NATS, "the highest of those"),
    Metric("mismatch_kl", NATS, "k3 of the same"),
    Metric("mismatch_tokens", TOKENS, "how many were compared; with an entropy mask only those that it keeps"),
    Metric("tis_weight", NO_UNIT, "mean importance weight of a token"),
    Metric("tis_capped", SHARE, "importance weights that were cut"),
)
_SELF_PLAY = (
    Metric("reward/ROLE_TASK", REWARD, "mean of a cell"),
    Metric("reward_min/ROLE_TASK", REWARD, "least of a cell"),
    Metric("reward_max/ROLE_TASK", REWARD, "largest of a cell"),
    Metric("malformed/ROLE_TASK", SHARE, "of a cell that earns -1: the form is wrong, or the proposal no valid task"),
    Metric("truncated/ROLE_TASK", SHARE, "of a cell that ran into the length limit"),
    Metric("tokens_max/ROLE_TASK", TOKENS, "longest rollout of a cell"),
    Metric("advantage_std/ROLE_TASK", NO_UNIT, "deviation of a cell's advantages: 1, or 0 where its rewards are equal"),
    Metric("proposals", COUNT, "rollouts of the proposer"),
    Metric("proposals_dropped", COUNT, "those without a fair judgement"),
    Metric("rows_dropped", COUNT, "rollouts of both roles without a fair judgement"),
    Metric("cell_degenerate", COUNT, "cells (task, role) whose rewards are all equal: their advantages are 0"),
    Metric("fill_with_replacement", COUNT, "tasks of the solver's batch that are repeats: its buffer is smaller"),
    Metric("new_examples", COUNT, "valid tasks that were not known"),
    Metric("new_examples/TASK", COUNT, "of a kind"),
    Metric("learnable", COUNT, "new tasks with a solve rate strictly between 0 and 1"),
    Metric("learnable_share/TASK", SHARE, "the same as a share of a kind's new tasks"),
    Metric("solve_rate/TASK", SHARE, "mean solve rate of a kind's new tasks"),
    Metric("accept_rate", SHARE, "proposals that are valid and new"),
    Metric("accept_rate/TASK", SHARE, "of a kind"),
    Metric("dup_rate", SHARE, "proposals that are valid and known"),
    Metric("dup_rate/TASK", SHARE, "of a kind"),
    Metric("invalid/REASON", COUNT, "proposals that are no new valid task, by first reason"),
    Metric("accuracy/TASK", SHARE, "the solver's rollouts that were right. Of own tasks: no measure of progress"),
    Metric("worked/TASK", SHARE, "the solver's rollouts that work before they answer"),
    Metric("tokens_mean/TASK", TOKENS, "mean length of an answer"),
    Metric("proposal_tokens/TASK", TOKENS, "mean length of a proposal"),
    Metric("statements", COUNT, "mean length of new programs, in statements"),
    Metric("distinct_programs", COUNT, "programs among the new tasks that are no copy of another"),
    Metric("identical_share", SHARE, "new tasks whose rollouts are all the same text: 1 in a whole step is an alarm"),
    Metric("executions", COUNT, "calls of programs to judge answers"),
    Metric("timeouts", COUNT, "those of them that ran out of time"),
    Metric("buffer/TASK", COUNT, "tasks in the buffer of a kind"),
    Metric(
        "proposer_push", SHARE, "of the proposer in the sum of |advantage| over all tokens, weighed as in the update"
    ),
)
_GRPO = (
    Metric("reward/correct", REWARD, "part of the reward for the right answer"),
    Metric("reward/format", REWARD, "part for the form"),
    Metric("reward/length", REWARD, "part for the length, at most 0"),
    Metric("reward/NAME", REWARD, "part of a reward of your own, by its name"),
    Metric("reward_std", REWARD, "deviation over all rollouts"),
    Metric("group_spread", REWARD, "mean of the groups' own deviations"),
    Metric("accuracy", SHARE, "rollouts that are right"),
    Metric("answered", SHARE, "rollouts in which an answer was found"),
    Metric("groups", COUNT, "problems drawn"),
    Metric("extra_rounds", COUNT, "rounds of further draws in place of uniform groups"),
    Metric("uniform_share", SHARE, "groups whose rewards make no difference"),
    Metric("all_right", SHARE, "groups that were always right"),
    Metric("all_wrong", SHARE, "groups that were never right"),
    Metric("skipped_share", SHARE, "groups that the update did not use"),
    Metric("rollouts_kept", COUNT, "rollouts that it did use"),
    Metric("tokens_min", TOKENS, "shortest completion"),
    Metric("tokens_max", TOKENS, "longest completion"),
    Metric("tokens_per_s", RATE, "completion tokens, by the seconds of generation"),
    Metric("train_tokens_per_s", RATE, "completion tokens in the update, by all of its seconds"),
    Metric("kept_tokens", SHARE, "tokens in the update that the entropy mask keeps"),
    Metric("entropy_kept", NATS, "mean over those"),
    Metric("entropy_threshold", NATS, "over which a token is kept"),
    Metric("clip_low", SHARE, "tokens in the loss whose gradient is cut at the lower bound"),
    Metric("clip_high", SHARE, "at the upper bound"),
    Metric(
        "ratio_mean", NO_UNIT, "policy in training over the one before the step's first update, of tokens in the loss"
    ),
    Metric("ratio_max", NO_UNIT, "the highest of those"),
    Metric("kl", NATS, "k3 to the model without adapter"),
    Metric("updates_done", COUNT, "steps with an update so far"),
    Metric("silent_steps", COUNT, "steps in a row in which no group taught anything"),
    Metric("problems", COUNT, "problems that there are"),
    Metric("problems_drawn", COUNT, "drawn since the run began, repeats among them"),
    Metric("epoch", COUNT, "how often the file was read"),
    Metric("stage", COUNT, "where the curriculum is, from 1"),
    Metric("stages", COUNT, "how many it has"),
    Metric("stage_steps", COUNT, "steps in this one"),
)
METRICS = (*_COMMON, *_SELF_PLAY, *_GRPO)
PLACES = {
    "ROLE_TASK": "(?:propose|solve)_[a-z]+",
    "TASK": "[a-z]+",
    "PHASE": "[a-z]+",
    "STAGE": "[a-z_]+",
    "REASON": "[a-z_]+",
    "NAME": "[a-z]+",
}
_place = re.compile("|".join(PLACES))
_patterns = [(re.compile(_place.sub(lambda found: PLACES[found[0]], one.name)), one) for one in METRICS]


def metric_of(name: str) -> Metric:
    """What a reported name means. Raises KeyError for one that is not declared."""
    plain = next((one for one in METRICS if one.name == name), None)  # reward/correct before reward/ROLE_TASK
    found = plain or next((one for pattern, one in _patterns if pattern.fullmatch(name)), None)
    if found is None:
        raise KeyError(f"{name!r} is no metric of profiles/metrics.py")
    return found


def reference() -> str:
    """docs/metrics.md, whole."""
    parts = [
        "# Metrics of a step\n\n"
        "<!-- Made by `python -m profiles.metrics > docs/metrics.md` from profiles/metrics.py; a test compares. -->\n\n"
        "What a step reports, in the store, in `events.jsonl` and to trackers. A cell is a role and a task: ROLE is\n"
        "`propose` or `solve`. Those of a validation are in [architecture](architecture.md#what-a-validation-stores).\n"
    ]
    for title, metrics in (("Every trainer", _COMMON), ("Self-play", _SELF_PLAY), ("GRPO", _GRPO)):
        rows = [f"| `{one.name}` | {one.unit} | {one.meaning.replace('|', chr(92) + '|')} |" for one in metrics]
        parts.append("\n".join([f"## {title}\n", "| metric | unit | what it is |", "| --- | --- | --- |", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
