"""Builds the View of a run: everything that is displayed, as one value. (pure)

The dashboard, the plain lines and `top` only decide how to draw it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.display.reading import Reading, reading_of
from orchestrator.display.scores import TaskScores, task_scores
from orchestrator.display.wording import harmless, pairs
from profiles.metrics import BUFFER, CELL_REWARD, NEW_EXAMPLES, REWARD, TASK_TOKENS_MEAN, TASK_WORKED
from profiles.schema import Profile
from profiles.task_kinds import SHOWN
from profiles.worker_kinds import WorkerKind, worker_kind_of
from state import event_kinds
from state.history import EventFacts, History, StepFacts, ValidationFacts
from state.states import RunState

CURVE_STEPS = 240
"""Number of steps in a live curve; the report shows all."""
EVENTS = 24
RECENT_STEPS = 20
"""Number of recent steps whose median is the usual step time."""
ROLES = ("propose", "solve")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Live:
    """Current facts that only the master knows. Times are monotonic."""

    master_pid: int
    worker_pid: int | None = None
    role: str = ""
    """"train", "validate", or empty between two workers."""
    stage: str = ""
    step: int | None = None
    """The step in progress."""
    step_started: float | None = None
    worker_rss_bytes: int | None = None
    master_rss_bytes: int = 0
    standby: str = ""
    """"", "warming" or "warm"."""
    waiting_until: float | None = None
    note: str = ""
    now: float = 0.0


@dataclass(frozen=True)
class Curve:
    """One metric over the steps, oldest first. task and role are empty for a metric without them."""

    name: str
    task: str
    role: str
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass(frozen=True)
class Example:
    """A task found by self-play. Its text is harmless: single lines without control characters."""

    task: str
    step: int
    program: tuple[str, ...]
    """Lines."""
    pairs: tuple[tuple[str, str], ...]
    """(input, output); several for induction."""
    solve_rate: float | None = None


@dataclass(frozen=True)
class EventLine:
    """An event as a line. at: UTC seconds."""

    at: float
    type: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Where the run stands."""

    run: str
    profile: str
    kind: WorkerKind
    """What trains."""
    state: str
    phase: str
    cycle: int
    max_cycles: int
    """0: no limit."""
    created_at: float
    """When the run began, UTC seconds."""
    training_s: float
    head_path: str
    head_step: int
    head_digest: str
    """First 12 digits."""
    reseeds: int
    failures: int
    last_failure: str
    stop_reason: str


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """What the processes do now."""

    now: float
    """Monotonic."""
    role: str
    stage: str
    step_now: int | None
    note: str
    waiting_left_s: float | None
    worker_pid: int | None
    worker_rss_bytes: int | None
    master_rss_bytes: int
    standby: str


@dataclass(frozen=True, kw_only=True)
class ProgressView:
    """Progress of the cycle and its step."""

    step: int
    """Last finished step."""
    step_in_cycle: int
    steps_in_cycle: int
    cycle_left_s: float | None
    step_elapsed_s: float | None
    step_median_s: float | None


@dataclass(frozen=True, kw_only=True)
class StepsView:
    """What the steps reported."""

    last_seconds: float | None
    last_reward: float | None
    rewards: tuple[Curve, ...]
    buffers: tuple[Curve, ...]
    worked: tuple[Curve, ...]
    tokens: tuple[Curve, ...]
    signals: tuple[Curve, ...]
    """Metrics of the whole step, such as acceptance, entropy and loss."""
    reading: Reading | None
    """Place in the problem file; None for self-play."""


@dataclass(frozen=True, kw_only=True)
class View(RunView, WorkerView, ProgressView, StepsView):
    """All views combined in one flat record."""

    scores: tuple[TaskScores, ...]
    """Scores on the run's first suite: deduction, abduction, induction, then the mean."""
    example: Example | None
    examples: int
    events: tuple[EventLine, ...]
    meter: str
    """How near the stagnation rule is to firing, in words; empty: it has not begun."""


class Memory:
    """Remembers what was made of a growing sequence, until its ends are others or something beside it is."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, tuple[Any, ...], Any]] = {}

    def of(self, name: str, items: Sequence[Any], make: Callable[[], Made], *beside: object) -> Made:
        ends = (items[0], items[-1], *beside) if items else beside
        known = self._known.get(name)
        if known is None or known[0] != len(items) or not _are(known[1], ends):
            known = self._known[name] = (len(items), ends, make())
        made: Made = known[2]
        return made


def _are(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether they are the same objects."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def build_view(
    history: History,
    live: Live,
    steps: Sequence[StepFacts],
    validations: Sequence[ValidationFacts],
    events: Sequence[EventFacts],
    profile: Profile,
    examples: Sequence[Mapping[str, Any]] = (),
    meter: str = "",
    memory: Memory | None = None,
) -> View:
    """steps, validations and events: oldest first; examples: newest first. meter: how near the stagnation rule is.

    memory: of the views before; what it holds is made anew only when steps or validations have changed.
    """
    kind, first = worker_kind_of(profile), history.first_validation
    memory = memory or Memory()
    steps = memory.of("in order", steps, lambda: in_order(steps))
    return View(
        **vars(_run_view(history, live, profile)),
        **vars(_worker_view(live)),
        **vars(_progress_view(history, live, steps)),
        **vars(memory.of("steps", steps, lambda: _steps_view(steps, kind), kind)),
        scores=memory.of("scores", validations, lambda: task_scores(validations, first), first),
        example=memory.of("example", examples, lambda: _example(examples[0])) if examples else None,
        examples=history.examples + memory.of("new", steps, lambda: _not_yet_committed(history, steps), history),
        events=memory.of("events", events, lambda: event_lines(events)),
        meter=meter,
    )


def _run_view(history: History, live: Live, profile: Profile) -> RunView:
    current, head = history.current, history.head
    failure = history.failures[-1] if history.failures else None
    return RunView(
        run=history.name,
        profile=profile.name,
        kind=worker_kind_of(profile),
        state=history.state.value,
        phase=_phase(history, live, profile),
        cycle=current.cycle if current else 0,
        max_cycles=profile.run.max_cycles,
        created_at=history.created_at,
        training_s=history.training_s,
        head_path=head.path if head else "",
        head_step=history.step,
        head_digest=head.digest[:12] if head else "",
        reseeds=history.reseeds,
        failures=len(history.failures),
        last_failure=harmless(f"{failure.failure} {failure.message}".strip()) if failure else "",
        stop_reason=harmless(history.stop_reason),
    )


def _worker_view(live: Live) -> WorkerView:
    return WorkerView(
        now=live.now,
        role=live.role,
        stage=live.stage,
        step_now=live.step,
        note=harmless(live.note),
        waiting_left_s=None if live.waiting_until is None else max(0.0, live.waiting_until - live.now),
        worker_pid=live.worker_pid,
        worker_rss_bytes=live.worker_rss_bytes,
        master_rss_bytes=live.master_rss_bytes,
        standby=live.standby,
    )


def _steps_view(steps: Sequence[StepFacts], kind: WorkerKind) -> StepsView:
    last, curves = steps[-1] if steps else None, _curves(steps[-CURVE_STEPS:], kind)
    return StepsView(
        last_seconds=last.seconds if last else None,
        last_reward=last.metrics.get(REWARD.name) if last else None,
        rewards=curves[CELL_REWARD.family],
        buffers=curves[BUFFER.family],
        worked=curves[TASK_WORKED.family],
        tokens=curves[TASK_TOKENS_MEAN.family],
        signals=curves[""],
        reading=reading_of(steps),
    )


EVENT_WORDS = {
    event_kinds.CHECKPOINT.name: "of step {step}",
    event_kinds.VALIDATION.name: "of step {step}",
    event_kinds.STARTED.name: "cycle {cycle}, after step {step}",
    event_kinds.DONE.name: "cycle {cycle}: {text}",
}
"""Text shown for an event instead of its payload."""
QUIET_EVENTS = event_kinds.names(event_kinds.SANDBOX, event_kinds.MEMORY, event_kinds.PATH)
"""Not shown live; the report and the store have them."""


def event_lines(events: Sequence[EventFacts]) -> tuple[EventLine, ...]:
    """The newest events as readable text, oldest first."""
    loud = [event for event in events if event.type not in QUIET_EVENTS][-EVENTS:]
    return tuple(
        EventLine(
            event.at,
            event.type,
            EVENT_WORDS.get(event.type, "{text}").format(
                step=event.step, cycle=event.cycle, text=harmless(event.text).replace("exit_code 0, outcome ", "")
            ),
        )
        for event in loud
    )


def in_order(steps: Sequence[StepFacts]) -> tuple[StepFacts, ...]:
    """Drop steps of a dead attempt that lie beyond its successor's current step."""
    kept: list[StepFacts] = []
    for facts in reversed(steps):
        if not kept or facts.step < kept[-1].step:
            kept.append(facts)
    return tuple(reversed(kept))


def _phase(history: History, live: Live, profile: Profile) -> str:
    """What the run is doing now, as shown to the user."""
    if history.state != RunState.RUNNING:
        return history.state.value
    if live.waiting_until is not None:
        return "waiting"
    if live.role == "validate":
        return "validating"
    if history.current is not None and history.current.phase == "seed":
        return worker_kind_of(profile).seeding
    return worker_kind_of(profile).training


def _progress_view(history: History, live: Live, steps: Sequence[StepFacts]) -> ProgressView:
    current, step = history.current, max(history.step, steps[-1].step if steps else 0)
    times = [facts.seconds for facts in steps[-2 * RECENT_STEPS :] if facts.seconds][-RECENT_STEPS:]
    median = statistics.median_high(times) if times else None
    elapsed = None if live.step_started is None else max(0.0, live.now - live.step_started)
    total = max(0, current.end_step - current.first_step) if current else 0
    done = min(total, max(0, step - current.first_step + 1)) if current else 0
    left = None
    if median is not None and done < total:
        # A slow step subtracts at most one median, so that the estimate never drops below the remaining steps.
        left = (total - done) * median - min(elapsed or 0.0, median)
    return ProgressView(
        step=step,
        step_in_cycle=done,
        steps_in_cycle=total,
        cycle_left_s=left,
        step_elapsed_s=elapsed,
        step_median_s=median,
    )


def _not_yet_committed(history: History, steps: Sequence[StepFacts]) -> int:
    """Number of tasks found since the head; the history counts only those in a checkpoint."""
    return sum(int(one.metrics.get(NEW_EXAMPLES.name, 0)) for one in steps if one.step > history.step)


# --- steps ---------------------------------------------------------------------------------------------------------


def _curves(steps: Sequence[StepFacts], kind: WorkerKind) -> dict[str, tuple[Curve, ...]]:
    """Family -> its curves. For self-play, shows only metrics that the newest step reports.

    For GRPO, shows metrics that any step reports, because a step without useful groups reports no loss.
    """
    all_metrics = [facts.metrics for facts in steps]
    signals = [one.name for one in kind.signals]
    idle = {one.name: value for one, value in kind.idle.items()}
    kept = (CELL_REWARD, BUFFER, TASK_WORKED, TASK_TOKENS_MEAN)
    families: dict[str, list[Curve]] = {"": [], **{one.family: [] for one in kept}}
    names = steps[-1].metrics if steps else {}
    if not kind.finds_tasks:
        names = {name: 0.0 for one in steps for name in one.metrics}
    for name in names:
        family, _, rest = name.rpartition("/")
        if family not in families or (not family and name not in signals):
            continue
        role, _, task = rest.rpartition("_") if family else ("", "", "")
        if family == "reward" and kind.finds_tasks and not role:
            continue  # a part of the reward, of all tasks
        values = tuple(
            [value for metrics in all_metrics if (value := metrics.get(name)) is not None and value == value]
        )
        if values and set(values) != {idle.get(name)}:
            families[family].append(Curve(name, task, role, values))
    return {family: tuple(sorted(curves, key=lambda c: _order(c, signals))) for family, curves in families.items()}


def _order(curve: Curve, signals: Sequence[str]) -> tuple[int, int, int]:
    role = ROLES.index(curve.role) if curve.role in ROLES else len(ROLES)
    task = SHOWN.index(curve.task) if curve.task in SHOWN else len(SHOWN)
    return role, task, signals.index(curve.name) if curve.name in signals else 0


def _example(row: Mapping[str, Any]) -> Example:
    return Example(
        task=harmless(str(row["task"])),
        step=int(row["step"]),
        program=tuple(harmless(line) for line in str(row["program"]).split("\n")),
        pairs=tuple(pairs(str(row["input"]), str(row["output"]))),
        solve_rate=row.get("solve_rate"),
    )
