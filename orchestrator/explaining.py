"""Says in plain sentences how a run stands, each with its evidence. (pure)

At most MOST sentences: whether it runs, whether it learns, what limits its speed, what a crash would cost, what is
strange, and what to do next. What is strange outweighs what is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.display.view import in_order
from orchestrator.display.wording import count, duration, go_on, percent, size
from orchestrator.nearness import nearest
from orchestrator.stagnation import MIN_CYCLES_OF_TREND, RISE_Z, collapse
from orchestrator.trend import Z95, Trend, trend_of
from profiles.metrics import (
    ALL_RIGHT,
    ALL_WRONG,
    ANSWERED,
    CELL_DEGENERATE,
    LOSS,
    MISMATCH_MEAN,
    SECONDS,
    TRUNCATED,
    UNIFORM_SHARE,
    Metric,
    by_phase,
)
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state.history import CycleFacts, History, StepFacts
from state.states import UNDER_A_MASTER

MOST = 10
"""Sentences."""
NEWEST_STEPS = 20
"""Steps whose medians count."""
MUCH_CUT = 0.15
"""Share of answers at the limit that is worth a sentence."""
MANY_UNIFORM = 0.6
"""Share of groups without a difference that is worth one."""
FAR_APART = 0.05
"""Nats a token between sampler and trainer; bfloat16 explains .04 at most (docs/engines.md)."""
MOST_OF_IT = 0.4
"""Share of a step from which on its largest part limits the speed."""
NEAR_ZERO = 1e-3


@dataclass(frozen=True)
class Sentence:
    """topic: what it is about, one word, for scripts."""

    topic: str
    text: str


@dataclass(frozen=True)
class Facts:
    """What is known of a run. steps: the newest, oldest first, those beyond the head among them."""

    history: History
    profile: Profile
    steps: Sequence[StepFacts]
    newest_step: int
    """Last finished step, whether or not a checkpoint holds it."""
    master_pid: int | None
    heartbeat_age_s: float

    @property
    def newest(self) -> Sequence[StepFacts]:
        return self.steps[-NEWEST_STEPS:]

    def median_of(self, name: str) -> float | None:
        """Over the newest steps that report it."""
        found = [float(value) for step in self.newest if (value := step.metrics.get(name)) is not None]
        return median(found) if found else None

    def typical(self, metric: Metric) -> float | None:
        return self.median_of(metric.name)


def explained(facts: Facts) -> list[Sentence]:
    """The sentences, most important first; the last one says what to do next."""
    parts = [
        alive(facts),
        learning(facts),
        rule(facts),
        *strange(facts),
        speed(facts),
        memory(facts),
        would_be_lost(facts),
    ]
    found = [sentence for sentence in parts if sentence is not None]
    return [*found[: MOST - 1], next_step(facts)]


def page_of(
    history: History, profile: Profile, steps: Sequence[StepFacts], master_pid: int | None, heartbeat_age_s: float
) -> list[str]:
    """The sentences for a display, which has the newest steps. Takes .1 s: only when the history has changed."""
    known = in_order(steps)
    newest = max(history.step, known[-1].step if known else 0)
    found = explained(Facts(history, profile, known, newest, master_pid, heartbeat_age_s))
    return [sentence.text for sentence in found]


def alive(facts: Facts) -> Sentence:
    history, at = facts.history, f"cycle {facts.history.current.cycle if facts.history.current else 0}"
    where = f"{at}, step {count(facts.newest_step)}"
    if facts.master_pid is not None:
        seen = duration(facts.heartbeat_age_s)
        if history.paused_at is not None:
            since = duration(history.heartbeat_at + facts.heartbeat_age_s - history.paused_at)
            return Sentence("alive", f"It is paused since {since}: master {facts.master_pid} waits in {where}.")
        return Sentence("alive", f"It runs: master {facts.master_pid} was last heard {seen} ago, in {where}.")
    ago = f"the last sign of life was {duration(facts.heartbeat_age_s)} ago, in {where}"
    if history.state in UNDER_A_MASTER:
        return Sentence("alive", f"It does not run, and nobody ended it: no process holds it, and {ago}.")
    reason = f" ({history.stop_reason})" if history.stop_reason else ""
    return Sentence("alive", f"It does not run: {history.state}{reason}; {ago}.")


# --- learning ---------------------------------------------------------------------------------------------------------


def validated_cycles(history: History) -> list[CycleFacts]:
    """Validated cycles of training since the last reseed, oldest first."""
    known = {cycle.cycle: cycle for cycle in (*history.recent, *([history.current] if history.current else []))}
    now = history.current.reseed if history.current else 0
    return [one for _, one in sorted(known.items()) if one.phase == "train" and one.validations and one.reseed == now]


def learning(facts: Facts) -> Sentence:
    cycles = validated_cycles(facts.history)
    if not worker_kind_of(facts.profile).validates:
        return Sentence("learning", "Nothing of ours validates this run: see the curves of the program that trains.")
    if len(cycles) < MIN_CYCLES_OF_TREND:
        return Sentence(
            "learning",
            f"Whether it learns cannot be told yet: {len(cycles)} of the {MIN_CYCLES_OF_TREND} validated cycles that a "
            "trend takes are there.",
        )
    if fallen := collapse(cycles, facts.profile.stagnation):
        return Sentence("learning", f"It gets worse: {fallen}.")
    whole = trend_of(cycles)
    if not whole.is_rise(Z95):
        return Sentence("learning", f"No rise can be told from noise: {whole.within_95()}.")
    if since := flat_since(cycles, whole):
        step = since[0].validations[0].step
        return Sentence(
            "learning",
            f"It learned, {whole.within_95()}, but accuracy is flat within noise since step {count(step)}: "
            f"{trend_of(since).within_95()}.",
        )
    return Sentence("learning", f"It learns: {whole.within_95()}.")


def flat_since(cycles: list[CycleFacts], whole: Trend) -> list[CycleFacts]:
    """The longest run of cycles up to the last one without a rise, and certainly (95 %) slower than the whole.

    Without the second condition noise would hide the rise of any short part. Empty: there is none.
    """
    for start in range(1, len(cycles) - MIN_CYCLES_OF_TREND + 1):
        part = trend_of(cycles[start:])
        if not part.is_rise(RISE_Z) and part.slope + Z95 * part.error < whole.slope:
            return cycles[start:]
    return []


def rule(facts: Facts) -> Sentence | None:
    """What the stagnation rule said at the end of the last cycle, and how near it is to firing."""
    done = [cycle for cycle in facts.history.recent if cycle.phase == "train" and cycle.verdict]
    wanted = facts.profile.stagnation
    if not done:
        return None
    near = nearest(facts.history, wanted)
    if len(done) < wanted.min_cycles:
        left = wanted.min_cycles - len(done)
        return Sentence("rule", f"The stagnation rule begins to judge in {left} cycles (stagnation.min_cycles).")
    kind, _, action = done[-1].verdict.partition(":")
    evidence = f" ({done[-1].evidence})" if done[-1].evidence else ""
    if kind == "go":
        meter = f"; nearest is {near.rule}, {percent(near.share)} of the way: {near.text}" if near is not None else ""
        return Sentence("rule", f"The stagnation rule let cycle {done[-1].cycle} pass{evidence}{meter}.")
    found = kind.replace("_", " ")
    return Sentence("rule", f"The stagnation rule found {found} in cycle {done[-1].cycle}{evidence}: {action}.")


# --- what is strange --------------------------------------------------------------------------------------------------


def strange(facts: Facts) -> Iterator[Sentence]:
    failures = facts.history.failures
    if failures:
        last = failures[-1]
        how_many = f"{len(failures)} attempt{'s' * (len(failures) > 1)}"
        words = f": {last.message}" if last.message else ""
        text = f"{how_many} failed since the last checkpoint, the last by {last.failure}{words}."
        yield Sentence("failures", text)
    apart = facts.typical(MISMATCH_MEAN)
    if apart is not None and apart > FAR_APART:
        yield Sentence(
            "mismatch",
            f"Sampler and trainer disagree by {apart:.3f} nats a token, more than rounding in bfloat16 explains: it "
            "learns from rollouts of another policy (docs/engines.md).",
        )
    cut = facts.typical(TRUNCATED)
    if cut is not None and cut >= MUCH_CUT:
        limit = facts.profile.sampling.max_completion_tokens
        yield Sentence(
            "cut",
            f"{percent(cut)} of answers are cut at the limit of {limit} tokens and earn little: raise "
            "sampling.max_completion_tokens, or reward shorter answers.",
        )
    yield from equal_rewards(facts, cut or 0.0)
    loss = facts.typical(LOSS)
    if loss is not None and abs(loss) < NEAR_ZERO and facts.profile.optimizer.updates_per_step == 1:
        yield Sentence(
            "loss",
            f"A loss near zero ({loss:.1g}) is normal with one update a step: advantages of a group add up to zero. "
            "Look at held-out accuracy instead.",
        )


def equal_rewards(facts: Facts, cut: float) -> Iterator[Sentence]:
    """Why most groups have equal rewards, which teach nothing: the likeliest reason first."""
    uniform = facts.typical(UNIFORM_SHARE)
    if uniform is not None and uniform >= MANY_UNIFORM:
        right, wrong = facts.typical(ALL_RIGHT) or 0.0, facts.typical(ALL_WRONG) or 0.0
        answered = facts.typical(ANSWERED)
        if right > wrong:
            why = "they are always right: take harder problems"
        elif cut >= MUCH_CUT:
            why = "they are never right, and many are cut at the limit: see there"
        elif answered is not None and answered < 1 - MUCH_CUT:
            why = f"no answer is found in {percent(1 - answered)} of them: look at the form that the reward expects"
        else:
            why = "they are never right: take easier problems, or larger groups"
        yield Sentence(
            "rewards",
            f"In {percent(uniform)} of groups all rewards are equal, and nothing is learned from them; {why}.",
        )
    degenerate = facts.typical(CELL_DEGENERATE)
    if degenerate:
        yield Sentence(
            "rewards",
            f"In {degenerate:.0f} cells (task and role) all rewards are equal, and nothing is learned from them: "
            "proposals are all too easy, all too hard, or malformed (docs/metrics.md).",
        )


# --- work -------------------------------------------------------------------------------------------------------------


def speed(facts: Facts) -> Sentence | None:
    """What a step takes, and what of it is the largest part."""
    whole = median([step.seconds for step in facts.newest if step.seconds] or [0.0])
    if not whole:
        return None
    parts: dict[str, float] = {}
    for name in {name for step in facts.newest for name in step.metrics if name.startswith(f"{SECONDS.name}/")}:
        parts[name.removeprefix(f"{SECONDS.name}/")] = facts.median_of(name) or 0.0
    text = f"A step takes {duration(whole)} (median of {len(facts.newest)})"
    largest = sorted(parts, key=lambda name: (-parts[name], name))[:2]
    if largest:
        shares = " and ".join(f"{percent(parts[name] / whole)} of it {name}" for name in largest)
        text += f", {shares}"
        if parts[largest[0]] / whole > MOST_OF_IT:
            text += f": {largest[0]} limits the speed"
    cost = facts.history.validation_cost
    if cost is not None and facts.history.cycles_done:
        per_cycle = facts.history.training_s / facts.history.cycles_done
        text += f"; a validation takes {duration(cost.seconds)} after {duration(per_cycle)} of training"
    return Sentence("speed", f"{text}.")


def memory(facts: Facts) -> Sentence | None:
    """The highest phase on the GPU beside its plan."""
    newest = facts.steps[-1].metrics if facts.steps else {}
    peaks = by_phase(newest, "allocated")
    if not peaks:
        return None
    phase = max(peaks, key=lambda name: (peaks[name], name))
    text = f"Memory is highest in {phase}: {size(int(peaks[phase]))}"
    if expected := by_phase(newest, "expected").get(phase):
        text += f", planned {size(int(expected))} ({100 * (peaks[phase] / expected - 1):+.0f} %)"
    return Sentence("memory", f"{text}.")


def would_be_lost(facts: Facts) -> Sentence:
    head = facts.history.head
    if head is None:
        return Sentence("lost", "There is no checkpoint yet: a crash now would begin the run again.")
    beyond = [step for step in facts.steps if step.step > head.step]
    if not beyond:
        return Sentence("lost", f"A crash now would cost nothing: step {count(head.step)} is a durable checkpoint.")
    lost = max(len(beyond), facts.newest_step - head.step)  # of many steps only the newest are known here
    seconds = duration(sum(step.seconds for step in beyond) / len(beyond) * lost)
    return Sentence(
        "lost",
        f"A crash now would cost the update{'s' * (lost > 1)} of {count(lost)} "
        f"step{'s' * (lost > 1)} ({seconds}) since the checkpoint of step "
        f"{count(head.step)}; finished rollouts are used again.",
    )


def next_step(facts: Facts) -> Sentence:
    history, name = facts.history, facts.history.name
    if facts.master_pid is not None and history.paused_at is not None:
        return Sentence("next", f"Next: python -m orchestrator resume --run {name}")
    if facts.master_pid is not None:
        return Sentence("next", f"Next: python -m orchestrator top --run {name}")
    if history.state in UNDER_A_MASTER or history.state in ("stopped", "failed"):
        return Sentence("next", f"Next: {go_on(name, facts.profile.run.phases, is_seeded=history.head is not None)}")
    return Sentence("next", f"Next: python -m orchestrator report --run {name}")
