"""The summary at the end of a run: results, why it ended, where to look, and the next command. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.display.reading import reading_of
from orchestrator.display.scores import TaskScores, task_scores
from orchestrator.display.wording import TASK_NAMES, count, duration, go_on, harmless, percent, points, score
from profiles.schema import Profile
from profiles.worker_kinds import WorkerKind, worker_kind_of
from state.history import History, StepFacts, ValidationFacts
from state.states import UNDER_A_MASTER, RunState

_ENDINGS = {
    RunState.RUNNING: "still running",
    RunState.STOPPED: "stopped",
    RunState.FINISHED: "finished",
    RunState.STAGNANT: "stagnant",
    RunState.PAUSED: "paused",
    RunState.FAILED: "failed",
}


def summary(
    history: History,
    steps: Sequence[StepFacts],
    validations: Sequence[ValidationFacts],
    profile: Profile,
    report: str = "",
    handed_on: str = "",
) -> str:
    """The summary without colour. report: path of report.html; empty means the usual place under ./runs.

    handed_on: line about the data set for a next run.
    """
    reason = harmless(history.stop_reason)
    lines = [
        f"run '{history.name}' (profile {profile.name}): {_ENDINGS[history.state]}" + (f", {reason}" if reason else "")
    ]
    rows = task_scores(validations, history.first_validation)
    if rows:
        lines += ["", *_score_lines(rows), *_beside(rows[-1])]
    else:
        lines += ["", "no checkpoint was validated yet"]
    lines += ["", *_work_lines(history, steps, worker_kind_of(profile))]
    lines.append(f"report     {report or f'runs/{history.name}/report.html'}")
    lines += [f"tasks      {handed_on}"] if handed_on else []
    lines.append(f"next       {next_command(history, profile)}")
    return "\n".join(lines)


def _score_lines(rows: Sequence[TaskScores]) -> list[str]:
    """A table of greedy accuracy at the start and now, with 95 % intervals. Marks a change within noise."""
    lines = [f"held-out, greedy   step {rows[0].first.step:<18} step {rows[0].last.step:<18} points"]
    for row in rows:
        first, last = row.first, row.last
        change = points(row.change) if len(row.scores) > 1 else ""
        if len(row.scores) > 1 and not row.is_certain:
            change += "  (within noise)"
        start = f"{score(first.greedy)} [{first.low:.2f}, {first.high:.2f}]"
        now = f"{score(last.greedy)} [{last.low:.2f}, {last.high:.2f}]"
        lines.append(f"  {TASK_NAMES.get(row.task, row.task):<16} {start:<23} {now:<23} {change}".rstrip())
    return lines


def _beside(mean: TaskScores) -> list[str]:
    """The metrics that move before greedy accuracy, from start to now: sampled accuracy, reward, worked, length."""
    first, last = mean.first, mean.last
    parts = []
    if first.sampled is not None and last.sampled is not None:
        parts.append(f"sampled {score(first.sampled)} -> {score(last.sampled)}")
    if first.reward is not None and last.reward is not None:
        parts.append(f"mean reward {first.reward:.3g} -> {last.reward:.3g}")
    if first.worked is not None and last.worked is not None:
        parts.append(f"worked answers {percent(first.worked)} -> {percent(last.worked)}")
    if first.tokens is not None and last.tokens is not None:
        parts.append(f"length {first.tokens:.0f} -> {last.tokens:.0f} tokens")
    return [f"  {', '.join(parts)}"] if parts else []


def _work_lines(history: History, steps: Sequence[StepFacts], kind: WorkerKind) -> list[str]:
    head = f"head {history.head.path}, {history.head.digest[:12]}" if history.head else "no checkpoint yet"
    cycles = "1 cycle" if history.cycles_done == 1 else f"{count(history.cycles_done)} cycles"
    lines = [
        f"trained    {duration(history.training_s)}: {count(history.step)} steps in {cycles}"
        + (f", reseeded {history.reseeds} times" if history.reseeds else ""),
        *([f"found      {count(history.examples)} distinct tasks"] if kind.finds_tasks else []),
        *([f"problems   {reading.place}; {reading.right}"] if (reading := reading_of(steps)) else []),
        f"kept       {head}",
    ]
    beyond = steps[-1].step - history.step if steps else 0
    if beyond > 0:
        rollouts = "with new rollouts" if kind.has_own_engine else "from the same rollouts"
        lines.append(f"repeated   {beyond} steps beyond the head will be trained again, {rollouts}")
    return lines


def next_command(history: History, profile: Profile) -> str:
    """The command to type next."""
    if history.state in (RunState.STOPPED, RunState.FAILED):
        return go_on(history.name, profile.run.phases, is_seeded=history.head is not None)
    if history.state in UNDER_A_MASTER:
        return f"python -m orchestrator top --run {history.name}"
    return f"python -m orchestrator status --run {history.name}"
