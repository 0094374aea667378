"""Rollouts that take several steps: each draws at most `grpo.segment_tokens` in a step, and goes on in the next.

A group is judged and trained on in the step in which the last of its rollouts ends. Tokens keep the log-probs of the
policies that drew them, so importance weights correct those of older ones.

Source: partial rollouts of Kimi k1.5, arXiv 2501.12599, section 2.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from workers.cycle.cursor import Exhausted
from workers.cycle.cursor import Place as CursorPlace
from workers.grpo.collecting import Asker, Stages, is_group_uniform
from workers.grpo.judging import Judging
from workers.grpo.metrics import collected_metrics
from workers.grpo.order import Order
from workers.grpo.rows import Collected, Part, Row, WaitingGroup
from workers.rng import derive
from workers.rollout.engine import Request


class Waiting:
    """Groups of which a rollout has not ended. Registered: a checkpoint holds them."""

    filename = "waiting.json"

    def __init__(self) -> None:
        self.groups: tuple[WaitingGroup, ...] = ()

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self.groups))

    def load(self, path: Path) -> None:
        self.groups = msgspec.json.decode(path.read_bytes(), type=tuple[WaitingGroup, ...])


def collect_segments(
    asker: Asker, order: Order, waiting: Sequence[WaitingGroup], step: int, stage: Stages
) -> Collected:
    """Draw the next segment of each rollout that has not ended, and the first of `step`'s own groups. Changes nothing.

    Each segment's seed depends on (run seed, step, group, sample). Groups that wait come first, in their order. Raises
    Exhausted if no problem is left and no group waits.
    """
    profile, longest = asker.profile, asker.profile.sampling.max_completion_tokens
    numbers, place = next_problems(order, profile.grpo.groups_per_step, has_others=bool(waiting))
    begun = [
        WaitingGroup(number, asker.prompt_ids(asker.problems[number]), (Part(),) * profile.grpo.group_size)
        for number in numbers
    ]
    with stage("rollout"):
        groups, drawn = gone_on(asker, [*waiting, *begun], step)
    rows = judged(asker, [group for group in groups if not group.goes_on(longest)], step, stage)
    uniform = [number for number, group in enumerate(rows) if is_group_uniform(group)]
    flat = [row for group in rows for row in group]
    still = tuple(group for group in groups if group.goes_on(longest))
    metrics = collected_metrics(flat, uniform, 0) if flat else {"groups": 0.0, "uniform_share": 0.0}
    return Collected(
        rows=flat,
        train=tuple(at for at in range(len(rows)) if profile.grpo.uniform != "skip" or at not in uniform),
        metrics=metrics
        | {"groups_waiting": float(len(still)), "tokens_drawn": float(drawn), "older_share": older_share(flat)},
        cursor=place,
        waiting=still,
    )


def gone_on(asker: Asker, groups: Sequence[WaitingGroup], step: int) -> tuple[list[WaitingGroup], int]:
    """The groups with the next segment of each rollout that has not ended, and how many tokens were drawn."""
    longest, seed = asker.profile.sampling.max_completion_tokens, asker.profile.run.seed
    places = [
        (at, sample)
        for at, group in enumerate(groups)
        for sample, part in enumerate(group.parts)
        if part.goes_on(longest)
    ]
    requests = [
        Request(
            groups[at].prompt_ids + groups[at].parts[sample].completion_ids, derive(seed, step, f"rollout {at}", sample)
        )
        for at, sample in places
    ]
    drawn = asker.engine.generate(requests, asker.sampling(asker.profile.grpo.segment_tokens))
    parts = [list(group.parts) for group in groups]
    for (at, sample), rollout in zip(places, drawn, strict=True):
        parts[at][sample] = parts[at][sample].followed_by(rollout)
    found = [msgspec.structs.replace(group, parts=tuple(each)) for group, each in zip(groups, parts, strict=True)]
    return found, sum(len(rollout.completion_ids) for rollout in drawn)


def next_problems(order: Order, count: int, *, has_others: bool) -> tuple[list[int], CursorPlace | None]:
    """The next problems and the place after them; none at the end of the file as long as other groups wait."""
    try:
        numbers, place = order.peek(count)
    except Exhausted:
        if not has_others:
            raise
        return [], None
    assert isinstance(place, CursorPlace)  # a rule of the profile: no curriculum
    return numbers, place


def judged(asker: Asker, groups: Sequence[WaitingGroup], step: int, stage: Stages) -> list[list[Row]]:
    """The rows of groups that have ended."""
    grpo = asker.profile.grpo
    answers = [[part.rollout(group.prompt_ids) for part in group.parts] for group in groups]
    problems = [group.problem for group in groups]
    with Judging(asker.case, asker.slow, problems, grpo.group_size, grpo.reward.on_error) as judging, stage("judge"):
        found = judging.found(answers) if groups else []
    rows = []
    for number, (group, cases) in enumerate(zip(groups, found, strict=True)):
        each = asker.rows(step, number, group.problem, cases)
        steps = max(len(part.segments) for part in group.parts)
        segments = [part.segments + (0,) * (steps - len(part.segments)) for part in group.parts]
        rows.append([msgspec.structs.replace(row, segments=one) for row, one in zip(each, segments, strict=True)])
    return rows


def of_older_policy(found: Collected) -> Collected:
    """The step, all of whose tokens were drawn before the last update. (pure)"""
    rows = [msgspec.structs.replace(row, segments=(*(row.segments or (row.num_own,)), 0)) for row in found.rows]
    shares = {"older_share": older_share(rows)} if rows else {}
    return msgspec.structs.replace(found, rows=rows, metrics=found.metrics | shares)


def older_share(rows: Sequence[Row]) -> float:
    """Of tokens that an older policy drew. (pure)"""
    tokens = sum(len(row.completion_ids) for row in rows)
    return 1.0 - sum(row.num_fresh for row in rows) / tokens if tokens else 0.0
