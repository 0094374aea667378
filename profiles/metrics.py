"""Declares each metric of a step once: name, unit and meaning. (pure)

Trainers report them in the event `step`; displays and trackers use these names. ROLE is propose or solve, TASK a kind
of task, NODE a node of a cluster, QUANTILE a percentile, and PHASE, STAGE, REASON, NAME and PART are words.
`python -m profiles.metrics > docs/metrics.md` generates the list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Unit(StrEnum):
    SHARE = "share"
    TOKENS = "tokens"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "s"
    REWARD = "reward"
    NATS = "nats"
    RATE = "tokens/s"
    NONE = "-"


@dataclass(frozen=True)
class Metric:
    """name: a placeholder such as TASK or PHASE makes it a family of metrics."""

    name: str
    unit: Unit
    meaning: str

    @property
    def label(self) -> str:
        """Its name for a person."""
        return label_of(self.name)

    @property
    def family(self) -> str:
        """What the names of a family share; empty for a metric that is alone."""
        return self.name.rpartition("/")[0]

    def of(self, one: str) -> str:
        """The name of one of a family, or how it begins: `reward/` + solve_ded."""
        return f"{self.family}/{one}"


def label_of(name: str) -> str:
    """A metric's name for a person."""
    return name.replace("_", " ")


# Metrics that programs read, not only people, have a name in Python: a rename here is all that a rename takes.
SECONDS = Metric("seconds", Unit.SECONDS, "the whole step")
STEPS_PER_SECOND = Metric("steps_per_second", Unit.NONE, "with open-instruct: of its last 20 steps, without saves")
TOKENS = Metric("tokens", Unit.TOKENS, "completion tokens that the update was given")
REWARD = Metric("reward", Unit.REWARD, "mean of all rollouts that were judged")
TRUNCATED = Metric("truncated", Unit.SHARE, "rollouts that ran into the length limit")
TOKENS_MEAN = Metric("tokens_mean", Unit.TOKENS, "mean length of a completion")
REWARDS_AT = Metric(
    "rewards/QUANTILE",
    Unit.REWARD,
    "how rewards are spread: p10, p25, p50, p75 or p90 of the rollouts have at most this; of the solver's in self-play",
)
LENGTHS_AT = Metric("lengths/QUANTILE", Unit.TOKENS, "the same of the lengths of their completions")
LOSS = Metric("loss", Unit.NONE, "sum over the updates of the step")
GRAD_NORM = Metric("grad_norm", Unit.NONE, "highest norm of a gradient before clipping")
LEARNING_RATE = Metric("learning_rate", Unit.NONE, "of all updates of the step")
ENTROPY = Metric("entropy", Unit.NATS, "mean over all completion tokens in the update, masked or not")
CLIP_FRACTION = Metric("clip_fraction", Unit.SHARE, "tokens in the loss whose gradient is cut")
MISMATCH_MAX = Metric("mismatch_max", Unit.NATS, "the highest of those")
CELL_REWARD = Metric("reward/ROLE_TASK", Unit.REWARD, "mean of a cell")
PROPOSALS = Metric("proposals", Unit.COUNT, "rollouts of the proposer")
NEW_EXAMPLES = Metric("new_examples", Unit.COUNT, "valid tasks that were not known")
LEARNABLE = Metric("learnable", Unit.COUNT, "new tasks with a solve rate strictly between 0 and 1")
ACCEPT_RATE = Metric("accept_rate", Unit.SHARE, "proposals that are valid and new")
TASK_WORKED = Metric("worked/TASK", Unit.SHARE, "the solver's rollouts that work before they answer")
TASK_TOKENS_MEAN = Metric("tokens_mean/TASK", Unit.TOKENS, "mean length of an answer")
STATEMENTS = Metric("statements", Unit.COUNT, "mean length of new programs, in statements")
BUFFER = Metric("buffer/TASK", Unit.COUNT, "tasks in the buffer of a kind")
REWARD_FORMAT = Metric("reward/format", Unit.REWARD, "part for the form")
REWARD_LENGTH = Metric("reward/length", Unit.REWARD, "part for the length, at most 0")
GROUP_SPREAD = Metric("group_spread", Unit.REWARD, "mean of the groups' own deviations")
ACCURACY = Metric(
    "accuracy", Unit.SHARE, "rollouts that are right. Of problems that are trained on: no measure of progress"
)
ANSWERED = Metric("answered", Unit.SHARE, "rollouts in which an answer was found")
PEAK_RSS = Metric("peak_rss_bytes", Unit.BYTES, "its highest")
SKIPPED_SHARE = Metric("skipped_share", Unit.SHARE, "groups that the update did not use")
TOKENS_MAX = Metric("tokens_max", Unit.TOKENS, "longest completion")
TOKENS_PER_S = Metric("tokens_per_s", Unit.RATE, "completion tokens, by the seconds of generation")
KEPT_TOKENS = Metric("kept_tokens", Unit.SHARE, "tokens in the update that the entropy mask keeps")
CLIP_LOW = Metric("clip_low", Unit.SHARE, "tokens in the loss whose gradient is cut at the lower bound")
CLIP_HIGH = Metric("clip_high", Unit.SHARE, "at the upper bound")
KL = Metric("kl", Unit.NATS, "k3 to the model without adapter")
PROBLEMS = Metric("problems", Unit.COUNT, "problems that there are")
PROBLEMS_DRAWN = Metric("problems_drawn", Unit.COUNT, "drawn since the run began, repeats among them")
STAGE = Metric("stage", Unit.COUNT, "where the curriculum is, from 1")
STAGES = Metric("stages", Unit.COUNT, "how many it has")
MISMATCH_MEAN = Metric(
    "mismatch_mean", Unit.NATS, "mean |log-ratio| of trainer to engine, before the first update alone"
)
CELL_DEGENERATE = Metric(
    "cell_degenerate", Unit.COUNT, "cells (task, role) whose rewards are all equal: their advantages are 0"
)
UNIFORM_SHARE = Metric("uniform_share", Unit.SHARE, "groups whose rewards make no difference")
ALL_RIGHT = Metric("all_right", Unit.SHARE, "groups that were always right")
ALL_WRONG = Metric("all_wrong", Unit.SHARE, "groups that were never right")
RSS = Metric("rss_bytes", Unit.BYTES, "resident memory of the worker")
PHASE_ALLOCATED = Metric("memory/PHASE/allocated", Unit.BYTES, "highest of the phase, in tensors on the GPU")
NODE_SECONDS = Metric(
    "node/NODE/seconds", Unit.SECONDS, "own computing of a node's slowest rank, without any wait; over hosts alone"
)


def of_node(node: str, figure: str) -> str:
    """The name of a node's metric: `node/n7/seconds`."""
    return f"node/{node}/{figure}"


def by_node(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The metrics of nodes among those of a step: node -> figure -> value."""
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if name.startswith("node/"):
            node, _, figure = name.removeprefix("node/").rpartition("/")
            found.setdefault(node, {})[figure] = value
    return found


def by_phase(metrics: Mapping[str, float], figure: str) -> dict[str, float]:
    """Phase -> one figure of its memory, such as `allocated`, among the metrics of a step."""
    found = {}
    for name, value in metrics.items():
        family, _, rest = name.partition("/")
        phase, _, last = rest.rpartition("/")
        if family == "memory" and last == figure:
            found[phase] = float(value)
    return found


_COMMON = (
    SECONDS,
    Metric("seconds/STAGE", Unit.SECONDS, "a part of the step"),
    TOKENS,
    Metric("reward/NAME", Unit.REWARD, "a part of the reward, without its weight: mean of the rollouts that it judges"),
    Metric("reward/NAME/PART", Unit.REWARD, "a part that a function of your own returned by name"),
    Metric("oom_retries", Unit.COUNT, "how often the run has repeated a step with less since it began"),
    RSS,
    PEAK_RSS,
    Metric("fp8/used", Unit.COUNT, "with model.fp8: 1 if products in 8 bits passed the check at the start, else 0"),
    Metric("fp8/gradient_off", Unit.SHARE, "of that check: how far the gradient is off that in bfloat16, by norm"),
    Metric("fp8/gradient_cosine", Unit.NONE, "of that check: the cosine of the two gradients"),
    PHASE_ALLOCATED,
    Metric("memory/PHASE/reserved", Unit.BYTES, "highest of the phase, held by PyTorch's allocator"),
    Metric("memory/PHASE/device", Unit.BYTES, "highest of the phase, of the whole GPU"),
    Metric("memory/PHASE/host", Unit.BYTES, "highest of the phase, resident, where there is no GPU"),
    Metric("memory/PHASE/expected", Unit.BYTES, "what the planner expects of the phase"),
    NODE_SECONDS,
    Metric("node/NODE/read", Unit.TOKENS, "that rank's distinct prompts"),
    Metric("node/NODE/decoded", Unit.TOKENS, "its completions"),
    Metric("node/NODE/longest", Unit.TOKENS, "its longest completions, one of each call of the engine"),
    Metric("node/NODE/trained", Unit.TOKENS, "its passes in scoring and update"),
    REWARD,
    REWARDS_AT,
    LENGTHS_AT,
    TRUNCATED,
    TOKENS_MEAN,
    Metric("turns_mean", Unit.COUNT, "mean number of replies in an episode with an environment"),
    Metric("distinct_share", Unit.SHARE, "different completions within a group, averaged: 1 is all different"),
    Metric(
        "rollouts_not_finite", Unit.COUNT, "rollouts with a log-prob or entropy that is NaN or infinite: not trained on"
    ),
    Metric("rollouts_not_judged", Unit.COUNT, "rollouts without a reward, because a part failed: not trained on"),
    Metric("update_skipped", Unit.COUNT, "1: there was nothing to learn from, and nothing was changed"),
    LOSS,
    GRAD_NORM,
    LEARNING_RATE,
    ENTROPY,
    CLIP_FRACTION,
    MISMATCH_MEAN,
    MISMATCH_MAX,
    Metric("mismatch_kl", Unit.NATS, "k3 of the same"),
    Metric("mismatch_tokens", Unit.TOKENS, "how many were compared; with an entropy mask only those that it keeps"),
    Metric("tis_weight", Unit.NONE, "mean importance weight of a token"),
    Metric("tis_capped", Unit.SHARE, "importance weights that were cut"),
    Metric("groups_waiting", Unit.COUNT, "with grpo.segment_tokens: groups of which a rollout goes on in a later step"),
    Metric("tokens_drawn", Unit.TOKENS, "with grpo.segment_tokens: drawn in this step, also of groups that wait"),
    Metric(
        "older_share",
        Unit.SHARE,
        "with grpo.segment_tokens or run.overlap: tokens that an older policy drew",
    ),
)
_SELF_PLAY = (
    CELL_REWARD,
    Metric("reward_min/ROLE_TASK", Unit.REWARD, "least of a cell"),
    Metric("reward_max/ROLE_TASK", Unit.REWARD, "largest of a cell"),
    Metric(
        "malformed/ROLE_TASK", Unit.SHARE, "of a cell that earns -1: the form is wrong, or the proposal no valid task"
    ),
    Metric("truncated/ROLE_TASK", Unit.SHARE, "of a cell that ran into the length limit"),
    Metric("tokens_max/ROLE_TASK", Unit.TOKENS, "longest rollout of a cell"),
    Metric(
        "advantage_std/ROLE_TASK", Unit.NONE, "deviation of a cell's advantages: 1, or 0 where its rewards are equal"
    ),
    PROPOSALS,
    Metric("proposals_dropped", Unit.COUNT, "those without a fair judgement"),
    Metric("rows_dropped", Unit.COUNT, "rollouts of both roles without a fair judgement"),
    CELL_DEGENERATE,
    Metric("fill_with_replacement", Unit.COUNT, "tasks of the solver's batch that are repeats: its buffer is smaller"),
    NEW_EXAMPLES,
    Metric("new_examples/TASK", Unit.COUNT, "of a kind"),
    LEARNABLE,
    Metric("learnable_share/TASK", Unit.SHARE, "the same as a share of a kind's new tasks"),
    Metric("solve_rate/TASK", Unit.SHARE, "mean solve rate of a kind's new tasks"),
    ACCEPT_RATE,
    Metric("accept_rate/TASK", Unit.SHARE, "of a kind"),
    Metric("dup_rate", Unit.SHARE, "proposals that are valid and known"),
    Metric("dup_rate/TASK", Unit.SHARE, "of a kind"),
    Metric("invalid/REASON", Unit.COUNT, "proposals that are no new valid task, by first reason"),
    Metric("accuracy/TASK", Unit.SHARE, "the solver's rollouts that were right. Of own tasks: no measure of progress"),
    TASK_WORKED,
    TASK_TOKENS_MEAN,
    Metric("proposal_tokens/TASK", Unit.TOKENS, "mean length of a proposal"),
    STATEMENTS,
    Metric("distinct_programs", Unit.COUNT, "programs among the new tasks that are no copy of another"),
    Metric(
        "identical_share", Unit.SHARE, "new tasks whose rollouts are all the same text: 1 in a whole step is an alarm"
    ),
    Metric("executions", Unit.COUNT, "calls of programs to judge answers"),
    Metric("timeouts", Unit.COUNT, "those of them that ran out of time"),
    BUFFER,
    Metric(
        "proposer_push",
        Unit.SHARE,
        "of the proposer in the sum of |advantage| over all tokens, weighed as in the update",
    ),
)
_GRPO = (
    Metric("reward/correct", Unit.REWARD, "part of the reward for the right answer"),
    REWARD_FORMAT,
    REWARD_LENGTH,
    Metric("reward_std", Unit.REWARD, "deviation over all rollouts"),
    GROUP_SPREAD,
    ACCURACY,
    ANSWERED,
    Metric("groups", Unit.COUNT, "problems drawn"),
    Metric("extra_rounds", Unit.COUNT, "rounds of further draws in place of uniform groups"),
    UNIFORM_SHARE,
    ALL_RIGHT,
    ALL_WRONG,
    SKIPPED_SHARE,
    Metric("rollouts_kept", Unit.COUNT, "rollouts that it did use"),
    Metric("tokens_min", Unit.TOKENS, "shortest completion"),
    TOKENS_MAX,
    TOKENS_PER_S,
    Metric("train_tokens_per_s", Unit.RATE, "completion tokens in the update, by all of its seconds"),
    KEPT_TOKENS,
    Metric("entropy_kept", Unit.NATS, "mean over those"),
    Metric("entropy_threshold", Unit.NATS, "over which a token is kept"),
    CLIP_LOW,
    CLIP_HIGH,
    Metric(
        "ratio_mean", Unit.NONE, "policy in training over the one before the step's first update, of tokens in the loss"
    ),
    Metric("ratio_max", Unit.NONE, "the highest of those"),
    KL,
    Metric("updates_done", Unit.COUNT, "steps with an update so far"),
    Metric("silent_steps", Unit.COUNT, "steps in a row in which no group taught anything"),
    PROBLEMS,
    PROBLEMS_DRAWN,
    Metric("epoch", Unit.COUNT, "how often the file was read"),
    STAGE,
    STAGES,
    Metric("stage_steps", Unit.COUNT, "steps in this one"),
    STEPS_PER_SECOND,
    Metric("probability_gap_mean", Unit.SHARE, "with verl: mean difference of a token's probability to the trainer's"),
    Metric("probability_gap_max", Unit.SHARE, "with verl: the largest of those"),
)
MEAN_REWARD = Metric("mean_reward", Unit.REWARD, "mean total of the greedy answers that were judged")
SAMPLED_REWARD = Metric("sampled_reward", Unit.REWARD, "the same of one sample each, at temperature 1")
NOT_JUDGED = Metric("not_judged", Unit.COUNT, "answers without a reward, because a part failed: not solved")
_HELD_OUT = (MEAN_REWARD, SAMPLED_REWARD, NOT_JUDGED)
_HELD_OUT_TITLE = "Validation by the run's own reward"
METRICS = (*_COMMON, *_SELF_PLAY, *_GRPO, *_HELD_OUT)
PLACES = {
    "ROLE_TASK": "(?:propose|solve)_[a-z]+",
    "TASK": "[a-z]+",
    "PHASE": "[a-z]+",
    "STAGE": "[a-z_]+",
    "REASON": "[a-z_]+",
    "NAME": r"\w+",
    "PART": ".+",
    "NODE": r"[\w.-]+",
    "QUANTILE": "p[0-9]+",
}
QUANTILES = (10, 25, 50, 75, 90)
"""Percents of `rewards/QUANTILE` and `lengths/QUANTILE`."""


@cache
def _patterns() -> list[tuple[re.Pattern[str], Metric]]:
    """Made when they are asked for: the start of a command does without. A user may give a reward any name, so those
    patterns come last."""
    place = re.compile("|".join(PLACES))
    inner_last = sorted(METRICS, key=lambda one: "NAME" in one.name)
    return [(re.compile(place.sub(lambda found: PLACES[found[0]], one.name)), one) for one in inner_last]


def metric_of(name: str) -> Metric:
    """The metric for a reported name. Raises KeyError if it is not declared."""
    plain = next((one for one in METRICS if one.name == name), None)  # reward/correct before reward/ROLE_TASK
    found = plain or next((one for pattern, one in _patterns() if pattern.fullmatch(name)), None)
    if found is None:
        raise KeyError(f"{name!r} is not a metric of profiles/metrics.py")
    return found


def reference() -> str:
    """The content of docs/metrics.md."""
    parts = [
        "# Metrics of a step\n\n"
        "<!-- Made by `python -m profiles.metrics > docs/metrics.md` from profiles/metrics.py; a test compares. -->\n\n"
        "What a step reports, in the store, in `events.jsonl` and to trackers. A cell is a role and a task: ROLE is\n"
        "`propose` or `solve`. Those of a validation are in [architecture](architecture.md#what-a-validation-stores).\n"
    ]
    titled = (("Every trainer", _COMMON), ("Self-play", _SELF_PLAY), ("GRPO", _GRPO), (_HELD_OUT_TITLE, _HELD_OUT))
    for title, metrics in titled:
        rows = [f"| `{one.name}` | {one.unit} | {one.meaning.replace('|', chr(92) + '|')} |" for one in metrics]
        parts.append("\n".join([f"## {title}\n", "| metric | unit | what it is |", "| --- | --- | --- |", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
