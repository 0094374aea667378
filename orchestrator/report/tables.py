"""The report's tables: cycles, evaluations, checkpoints, failed attempts. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from time import gmtime, strftime
from typing import Any

from orchestrator.display.wording import TASK_NAMES, count, duration, percent, score, size
from orchestrator.evaluation.render import how, scores, target_of
from orchestrator.report.curves import seconds_of_parts
from orchestrator.report.escaping import text
from orchestrator.report.facts import Facts
from profiles.metrics import MEAN_REWARD
from state.cycle_times import CycleTime, learning_share, of_one_clock


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return '<p class="none">none</p>'
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="card scroll"><table><tr>{head}</tr>{body}</table></div>'


def cycles(facts: Facts) -> str:
    found = ("new tasks", "learnable") if facts.finds_tasks else ()
    rewards = [_reward(c.validations) for c in facts.cycles]
    rewarded = ("mean reward",) if any(rewards) else ()
    return table(
        ("cycle", "phase", "steps", "state", "greedy", "sampled", *rewarded, *found, "training", "verdict"),
        [
            (
                c.cycle,
                c.phase,
                f"{c.first_step} – {c.end_step - 1}" if c.end_step > c.first_step else "",
                c.state.value,
                _mean(c.validations, "accuracy"),
                _mean(c.validations, "sampled_accuracy"),
                *((reward,) if rewarded else ()),
                *((count(c.new_examples), percent(c.learnable / c.proposals) if c.proposals else "") if found else ()),
                duration(c.train_s),
                f"{c.verdict} {c.evidence}".strip(),
            )
            for c, reward in zip(facts.cycles, rewards, strict=True)
        ],
    )


def _reward(validations: Sequence[Any]) -> str:
    """Of the first suite whose answers the run's own reward judges; empty if there is none."""
    found = [one.metrics.get("mean", {}).get(MEAN_REWARD.name) for one in validations]
    return next((f"{value:.3g}" for value in found if value is not None), "")


def _mean(validations: Sequence[Any], name: str) -> str:
    value = validations[0].metrics.get("mean", {}).get(name) if validations else None
    return "" if value is None else score(value)


def evaluations(facts: Facts) -> str:
    """Results of `evaluate` by task. (The curves show validations between cycles.)"""
    rows: list[Sequence[object]] = []
    for one in facts.evaluations:
        about = (target_of(one), one.suite)
        if one.ended_at is None:
            rows.append((*about, "", f"{count(one.answered)} of {count(one.n)}", "not finished", how(one.settings)))
        tasks = [task for task in one.metrics if task != "mean"]
        for task in tasks + (["mean"] if len(tasks) > 1 else []):
            problems = count(one.metrics[task].get("n"))
            rows.append((*about, TASK_NAMES.get(task, task), problems, scores(one.metrics, task), how(one.settings)))
    return table(("checkpoint", "suite", "task", "problems", "score [95 %]", "how"), rows)


def checkpoints(facts: Facts) -> str:
    head = facts.history.head
    return table(
        ("step", "cycle", "path", "digest", "size", "verified", ""),
        [
            (
                c.step,
                c.cycle,
                c.path,
                c.digest[:12],
                size(c.bytes),
                "yes" if c.verified else "sizes only",
                "head" if head is not None and c.checkpoint_id == head.checkpoint_id else "",
            )
            for c in facts.checkpoints
        ],
    )


def failures(facts: Facts) -> str:
    return table(
        ("when", "cycle", "role", "attempt", "at step", "failure", "exit code", "message"),
        [
            (
                strftime("%Y-%m-%d %H:%M:%S", gmtime(a.at)),
                a.cycle,
                a.role,
                a.attempt,
                a.step_reached,
                a.failure,
                "" if a.exit_code is None else a.exit_code,
                a.message[:400],
            )
            for a in facts.failures
        ],
    )


def time(facts: Facts) -> str:
    """Hours of the run by what they went into, the parts of a step below training."""
    history = facts.history
    training = facts.series.seconds[-1] if facts.series.seconds else 0.0
    whole = max(training, history.heartbeat_at - history.created_at)
    rows = [
        ("training", training),
        *((f"\u2003{part}", seconds) for part, seconds in seconds_of_parts(facts.series).items()),
        ("validation", facts.validating_s),
        ("starts, hand-overs, pauses", max(0.0, whole - training - facts.validating_s)),
    ]
    shown = [(name, duration(seconds), percent(seconds / whole) if whole else "") for name, seconds in rows if seconds]
    return table(("what", "time", "share"), shown) + _newest(facts.times)


def _newest(times: Sequence[CycleTime]) -> str:
    """What the whole run cannot tell, since it includes the time in which the run was stopped."""
    times = of_one_clock(times)
    if not times:
        return ""
    cycles = f"cycles {times[0].cycle} to {times[-1].cycle}"
    return f'<div class="note">rollouts and updates: {percent(learning_share(times))} of {cycles}</div>'
